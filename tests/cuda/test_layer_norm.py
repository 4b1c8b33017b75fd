"""layer_norm.cu against a float64 oracle; a row's bits against those of the row alone."""

import pytest
import torch

from .checks_elementwise import check_layer_norm


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 64), (2, 1000), (5, 768), (2, 8200)])
@pytest.mark.parametrize(("dtype", "has_bias"), [(torch.bfloat16, True), (torch.float16, False)])
def test_a_row_has_mean_0_and_variance_1_times_the_weight_plus_the_bias(scheduled, device, dtype, has_bias, rows, size):
    check_layer_norm(scheduled, dtype, rows, size, has_bias, device)
