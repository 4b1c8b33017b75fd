"""Equal descriptions of the arithmetic mean equal bits, different ones different bits: see docs/determinism.md."""

from types import SimpleNamespace

import pytest
import torch

from paged_serve.workers.backends.cpu.backend import CpuBackend
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.process.arithmetic import arithmetic

pytestmark = pytest.mark.skipif(not cpu.runnable_isas(), reason="the kernels are not built")


def words(num_ranks=1, *, inputs=64, dtype=torch.bfloat16, device="cpu", summation="dot"):
    """Of a model with one product whose `inputs` are divided among ranks."""
    pool = cpu.Pool(cpu.best_library(), [-1])
    backend = CpuBackend(pool)
    backend.packed(torch.ones(8, inputs // num_ranks, dtype=dtype), num_ranks)
    pool.close()
    model = SimpleNamespace(dtype=dtype, device=device, libraries="", backend=backend)
    return arithmetic(model, num_ranks, None if summation is None else SimpleNamespace(summation=summation))


def test_numbers_of_ranks_are_equal_that_divide_the_segments_of_products():
    assert words(1) == words(2) == words(4) == "cpu bfloat16 dot"
    assert len({words(1), words(3, inputs=192), words(8)}) == 3


def test_four_ranks_differ_if_an_input_has_two_segments():
    assert words(1, inputs=72) == words(2, inputs=72) == "cpu bfloat16 dot"
    assert words(4, inputs=72) == "cpu bfloat16 dot 4 ranks"


def test_the_order_of_sums_matters_only_for_bfloat16():
    assert words(summation="tile") == "cpu bfloat16 tile"
    assert words(summation="tile", dtype=torch.float32) == words(dtype=torch.float32) == "cpu float32"


@pytest.mark.parametrize("options", [{"summation": None}, {"device": "cuda", "summation": None}])
def test_torch_and_devices_have_different_bits_for_each_number_of_ranks(options):
    assert words(1, **options) != words(2, **options)
