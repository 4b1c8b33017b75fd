"""activation.cu and cap_logits.cu against float64."""

import pytest
import torch

from .checks_elementwise import check_activation, check_capped_logits


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 264), (2, 4104)])
@pytest.mark.parametrize(
    ("activation", "dtype"), [("silu", torch.bfloat16), ("gelu_tanh", torch.float16), ("gelu_erf", torch.bfloat16)]
)
def test_each_element_is_the_activated_gate_times_its_other_half(launcher, device, activation, dtype, rows, size):
    check_activation(launcher, dtype, rows, size, activation, True, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "size"), [(1, 8), (2, 4104)])
@pytest.mark.parametrize(
    ("activation", "dtype"), [("gelu_tanh", torch.bfloat16), ("gelu_erf", torch.float16), ("relu", torch.bfloat16)]
)
def test_without_a_gate_each_element_is_activated(launcher, device, activation, dtype, rows, size):
    check_activation(launcher, dtype, rows, size, activation, False, device)


@pytest.mark.cpu_kernels
@pytest.mark.parametrize(("rows", "columns", "cap"), [(1, 1, 30.0), (3, 513, 0.5), (2, 4100, 50.0)])
def test_logits_are_capped_by_a_tanh(launcher, device, rows, columns, cap):
    check_capped_logits(launcher, rows, columns, cap, device)
