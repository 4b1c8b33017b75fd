"""Runs the tests of the kernels under the address, undefined-behaviour and thread sanitizers."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "faults" / "sanitize_kernels.py"


@pytest.mark.nightly
def test_the_sanitizers_find_nothing_in_the_kernels(cpu_library):
    if cpu_library.isa != "portable":
        pytest.skip("once is enough: the script builds and tests every instruction set that runs here")
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
