"""The kernels of LoRA adapters: against float64, and to the bit whatever the other rows."""

import pytest

from ...workers.lora_case import LoraCase
from ..checks.checks_lora import BF16, FP16, check_case, check_lora


def test_the_kernels_of_adapters_are_correct(launcher, device):
    check_lora(launcher, device)


@pytest.mark.nightly
def test_the_kernels_of_adapters_are_race_free_in_every_schedule(scheduled, device):
    check_lora(scheduled, device)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("rank", [1, 4, 64, 256])
def test_every_rank_and_dtype(launcher, device, dtype, rank):
    check_case(launcher, LoraCase(1024, (300, 64), (rank, 8), dtype, 20, device=device))
