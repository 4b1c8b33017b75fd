"""Every primitive's C++ body against its definition."""

import pytest
import torch

from paged_serve.workers.kernels.cuda.selftest import PRIMITIVES, Case, agree, cases, run, selftest_kernel

from ..checks.checks_selftest import DEFINITIONS, check_case
from ..emulated import COMPILER, EmulatorLauncher
from ..small_floats import FORMATS

CASES = cases()


def test_every_primitive_has_a_case():
    assert {case.primitive for case in CASES} == set(PRIMITIVES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_primitive_matches_its_definition(scheduled, device, case):
    """On a device the results also equal those of the emulator."""
    check_case(scheduled, case, device)
    if COMPILER:
        assert agree(case, run(scheduled, case, device), run(EmulatorLauncher(), case))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_result_fails_the_comparison(case):
    expected = DEFINITIONS[case.primitive](case, *case.inputs)
    assert agree(case, expected, expected)
    assert not agree(case, expected.roll(1, 0), expected)
    last_bit = expected.contiguous().view(torch.uint8).clone()
    last_bit[len(expected) // 2, 0] ^= 1
    assert agree(case, last_bit.view(expected.dtype), expected) == (case.tolerance > 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nan_stays_nan_when_it_is_widened(dtype):
    codes = torch.tensor([[0x7F, 0xFF]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert run(EmulatorLauncher(), Case("widen2", selftest_kernel(dtype), (codes,), 0.0)).isnan().all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_tables_match_torch(dtype):
    layout = FORMATS[dtype]
    codes = torch.arange(layout.largest + 1).to(torch.uint8 if dtype.itemsize == 1 else torch.uint16).view(dtype)
    assert (codes.double().numpy() == layout.values[:-1]).all()
