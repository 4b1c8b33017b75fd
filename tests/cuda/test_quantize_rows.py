"""quantize_rows.cu: every code and every scale is rounded exactly once."""

import pytest
import torch

from .checks_elementwise import check_quantized_rows


@pytest.mark.parametrize(("rows", "size"), [(3, 8), (4, 64), (4, 1000), (6, 2048), (4, 8200)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_row_is_quantized_in_units_of_its_largest_value(scheduled, device, dtype, rows, size):
    check_quantized_rows(scheduled, dtype, rows, size, device)
