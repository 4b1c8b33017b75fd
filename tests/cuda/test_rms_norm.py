"""rms_norm.cu against a float64 oracle; a row's bits against those of the row alone."""

import pytest
import torch

from .checks_elementwise import check_rms_norm
from .emulated import SCHEDULES, EmulatorLauncher


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (2, 1000), (5, 2048), (2, 8200)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_has_unit_mean_square_times_the_weight(dtype, rows, size, schedule):
    check_rms_norm(EmulatorLauncher(schedule=schedule), dtype, rows, size)
