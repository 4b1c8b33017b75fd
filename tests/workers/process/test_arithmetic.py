"""Equal descriptions of the arithmetic mean equal bits, different ones different bits: see docs/determinism.md."""

from types import SimpleNamespace

import pytest
import torch

from paged_serve.workers.process.arithmetic import arithmetic


def words(num_ranks=1, *, dtype=torch.bfloat16, device="cpu", summation="dot"):
    model = SimpleNamespace(dtype=dtype, device=device, libraries="")
    return arithmetic(model, num_ranks, None if summation is None else SimpleNamespace(summation=summation))


def test_one_two_and_four_ranks_are_equal_and_others_are_not():
    assert words(1) == words(2) == words(4) == "cpu bfloat16 dot"
    assert len({words(1), words(3), words(8)}) == 3


def test_the_order_of_sums_matters_only_for_bfloat16():
    assert words(summation="tile") == "cpu bfloat16 tile"
    assert words(summation="tile", dtype=torch.float32) == words(dtype=torch.float32) == "cpu float32"


@pytest.mark.parametrize("options", [{"summation": None}, {"device": "cuda", "summation": None}])
def test_torch_and_devices_have_different_bits_for_each_number_of_ranks(options):
    assert words(1, **options) != words(2, **options)
