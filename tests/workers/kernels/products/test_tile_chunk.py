"""The chunk of products in tile order is the one that is fastest on this machine, now."""

from types import SimpleNamespace

import pytest

from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu import tile_chunk
from paged_serve.workers.kernels.cpu.tile_chunk import CHUNKS, SAMPLES, choose_chunk, fastest


@pytest.fixture
def pool():
    if (library := cpu.best_library()) is None:
        pytest.skip("the kernels are not built: python setup.py build_ext --inplace")
    made = cpu.Pool(library, [-1], summation="tile")
    yield made
    made.close()
    library.set_chunk_pieces(CHUNKS[0])


@pytest.mark.parametrize("best", CHUNKS)
def test_the_fastest_chunk_is_set(pool, monkeypatch, best):
    """Products are replaced by waits in virtual time, of which the shortest is that of `best`."""
    used, clock = [], SimpleNamespace(now=0.0)
    monkeypatch.setattr(tile_chunk, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    set_chunk = cpu.Library.set_chunk_pieces
    monkeypatch.setattr(
        cpu.Library, "set_chunk_pieces", lambda self, pieces: (used.append(pieces), set_chunk(self, pieces))
    )

    def watch(name, kernel):
        def wait(handle, fields):
            clock.now += 0.001 if used and used[-1] == best else 0.004

        return wait

    with pool.watched(watch):
        choose_chunk(pool)
    assert used[-1] == best
    assert used[:-1] == list(CHUNKS) * SAMPLES, "in turn, as the machine may become slower meanwhile"


def test_an_interruption_decides_nothing():
    assert fastest({4: [3.0, 3.0, 3.0], 6: [2.0, 99.0, 2.0], 8: [1.0, 4.0, 4.0]}) == 6


def test_the_products_that_are_measured_are_real(pool):
    calls = []
    with pool.watched(lambda name, kernel: lambda *given: (calls.append(name), kernel(*given))):
        choose_chunk(pool)
    assert calls == ["gemm_bf16"] * (1 + len(CHUNKS) * SAMPLES)
