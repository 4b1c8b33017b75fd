"""Runs the tests of the kernels under the address, undefined-behaviour and thread sanitizers."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "faults" / "sanitize_kernels.py"


def test_every_test_of_single_kernels_runs_under_the_sanitizers():
    sanitized = set(map(Path, runpy.run_path(str(SCRIPT))["TESTS"]))
    uses_kernels = re.compile(r"\b(cpu_library|cpu_pools|pools_of_each_order)\b")
    tests = set(Path(__file__).parent.rglob("test_*.py")) - {Path(__file__)}
    assert {path for path in tests if uses_kernels.search(path.read_text())} <= sanitized


@pytest.mark.nightly
def test_the_sanitizers_find_nothing_in_the_kernels(cpu_library):
    if cpu_library.isa != "portable":
        pytest.skip("once is enough: the script builds and tests every instruction set that runs here")
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
