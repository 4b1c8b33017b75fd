"""rms_norm.cu against a float64 oracle; a row's bits against those of the row alone."""

import pytest
import torch

from paged_serve.workers.kernels.cuda.norm import rms_norm

from .emulated import SCHEDULES, EmulatorLauncher

EPS = 1e-6
ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # of one rounding, relative


def oracle(hidden, weight, delta=None):
    wide = hidden.double() if delta is None else (hidden + delta).double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (2, 1000), (5, 2048), (2, 8200)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_has_unit_mean_square_times_the_weight(random, dtype, rows, size, schedule):
    launcher = EmulatorLauncher(schedule=schedule)
    hidden, delta = torch.randn((2, rows, size), generator=random).to(dtype)
    weight = torch.randn(size, generator=random)
    expected, added = oracle(hidden, weight, delta), hidden + delta
    found = rms_norm(launcher, hidden, weight, EPS, delta)
    assert torch.equal(hidden, added)
    torch.testing.assert_close(found.double(), expected, rtol=ULP[dtype] * 1.01, atol=1e-7)
    alone = rms_norm(launcher, added[-1:].clone(), weight, EPS)
    assert torch.equal(alone, found[-1:])
