"""The kernels of steps with chunks wait for each other and run together: with the same bits, and before torch reads."""

from functools import partial

import pytest
import torch

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.backends.cpu import backend
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.elementwise import normalise
from paged_serve.workers.kernels.cpu.programs.queued_calls import QueuedCalls
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.models.loading import load_model

from ..host_runners import new_host_runner
from ..tiny_models.checkpoints import VARIANTS, write_checkpoint
from .recorded_steps import BLOCK_SIZE, NUM_ROWS, STEADY, contents, counting, join, prefill

QUICK = (
    *("llama", "gpt-neox", "opt-350m", "gemma2", "qwen3-moe"),
    *("lfm2", "qwen3-next", "jamba", "falcon-h1", "deepseek-v3", "deepseek-v3.2"),
)
FAMILIES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in VARIANTS]
MAX_LEN = 512


@pytest.fixture
def pool(make_pool):
    if (made := make_pool()) is None:
        pytest.skip("the kernels are not built")
    return made


def loaded(folder, pool):
    """A runner whose steps with chunks are queued, and how many tables each of its rows has."""
    model = load_model(str(folder), ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, total: None, pool)
    layout = CacheLayout.of(model.geometry, MAX_LEN, BLOCK_SIZE)
    num_tables = len(layout.groups.windows)
    blocks = -(-MAX_LEN // layout.block_size)  # of a row in each table
    cache = KVCache.allocate(model.geometry, NUM_ROWS * blocks * num_tables, layout.block_size, groups=layout.groups)
    of_row = {"max_len": blocks * BLOCK_SIZE, "num_groups": num_tables}
    return new_host_runner(model, cache, NUM_ROWS, MAX_LEN), partial(prefill, **of_row)


@pytest.fixture(autouse=True)
def _small_models_count_as_large(monkeypatch):
    monkeypatch.setattr(backend, "QUEUED_WEIGHTS_BYTES", 0)


@pytest.mark.parametrize("variant", FAMILIES)
def test_chunks_in_one_call_have_the_bits_of_kernel_by_kernel(variant, pool, make_pool, tmp_path):
    write_checkpoint(variant, tmp_path)
    other_pool = make_pool()
    (runner, of_row), (other, _) = loaded(tmp_path, pool), loaded(tmp_path, other_pool)
    plans = [of_row(0, 90), of_row(1, 70), join(0), of_row(2, 66), join(1), of_row(3, 5), STEADY]
    shares = []
    for plan in plans:
        with counting(pool) as together:
            answer = contents(runner.execute(plan))
        with counting(other_pool, programs=False) as alone:
            assert answer == contents(other.execute(plan))
        assert together["run_program"] <= 1
        shares.append((together.total() - together["run_program"]) / alone.total())
    assert max(shares[1], shares[3], shares[5]) < 0.5, "the first chunk allocates; later ones call the last layer"


def test_most_kernels_of_a_chunk_run_in_one_call(pool, tmp_path):
    write_checkpoint("llama", tmp_path)
    runner, of_row = loaded(tmp_path, pool)
    runner.execute(of_row(0, 90))
    with counting(pool) as calls:
        runner.execute(of_row(1, 90))
    assert calls["run_program"] == 1
    assert calls["attention_fp32"] == 0
    with counting(pool, programs=False) as calls:
        runner.execute(of_row(2, 90))
    assert calls["attention_fp32"] == 3, "one of each layer"


@pytest.fixture
def norm(pool):
    """A norm from `x` to `out`, both [4, 64]."""
    weight = torch.ones(64)
    return lambda x, out: normalise(pool, x, weight, None, 1e-6, is_centred=False, out=out)


def test_torch_sees_what_earlier_kernels_wrote_and_later_kernels_see_what_torch_wrote(pool, norm):
    x, first, last = torch.randn(4, 64), torch.zeros(4, 64), torch.zeros(4, 64)
    with QueuedCalls(pool):
        norm(x, first)
        assert not first.view(-1).numpy().any(), "a view does not run what waits"
        doubled = 2 * first
        assert first.numpy().any()
        norm(doubled, last)
        assert last.numpy().any(), "calls no longer wait, because memory of torch may be freed"
    expected = norm(x, torch.empty(4, 64))
    assert torch.equal(doubled, 2 * expected)
    assert torch.equal(last, norm(2 * expected, torch.empty(4, 64)))


def test_a_copy_by_an_operation_that_may_be_a_view_sees_what_kernels_wrote(pool, norm):
    x, out = torch.randn(4, 64), torch.zeros(4, 64)
    with torch.inference_mode(), QueuedCalls(pool):  # otherwise torch divides it into others
        norm(x, out)
        flat = out[:, :32].flatten()
    assert torch.equal(flat, norm(x, torch.empty(4, 64))[:, :32].reshape(-1))


def test_after_an_error_nothing_waits(pool, norm):
    x, out = torch.randn(4, 64), torch.zeros(4, 64)

    def fail_after_a_call():
        with QueuedCalls(pool):
            norm(x, out)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_call()
    assert not out.any()
    assert norm(x, out).any(), "the pool runs kernels at once again"
