"""activation.cu against float64."""

import pytest
import torch

from .checks_elementwise import check_activation


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
