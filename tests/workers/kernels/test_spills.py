"""Libraries for instruction sets that this machine does not run, too, keep accumulators in registers."""

import shutil

import pytest
from check_spills import excessive, spills

from paged_serve.workers.kernels.cpu import library as cpu

from ..emulation.build import CSRC, SETUP, build


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not all(map(shutil.which, ("g++", "objdump"))), reason="needs g++ and binutils")
@pytest.mark.parametrize("isa", SETUP["FLAGS_BY_ISA"])
def test_no_product_of_another_instruction_set_keeps_its_accumulators_on_the_stack(isa, tmp_path):
    if isa in cpu.runnable_isas() or isa == "portable":
        pytest.skip("its own test reads the library that was built, or it has no instruction to look for")
    library = tmp_path / f"_cpu_{isa}.so"
    build(library, sorted(CSRC.rglob("*.cpp")), SETUP["FLAGS_BY_ISA"][isa])
    assert excessive(spills(library)) == []
