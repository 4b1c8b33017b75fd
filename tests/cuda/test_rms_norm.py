"""rms_norm.cu against a float64 oracle; a row's bits against those of the row alone."""

import pytest
import torch

from .checks_elementwise import check_rms_norm


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (2, 1000), (5, 2048), (2, 8200)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_has_unit_mean_square_times_the_weight(scheduled, device, dtype, rows, size):
    check_rms_norm(scheduled, dtype, rows, size, device)
