"""The libraries for AVX512 with emulated vectors pass the tests of kernels and of whole models."""

import platform
import shutil

import pytest

from paged_serve.workers.kernels.cpu import library as cpu

from ..order_of_sums.test_amx import SUBJECTS
from .avx512 import build_for_avx512, run_tests

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="another machine's instructions"),
    pytest.mark.skipif("avx512fma" in cpu.runnable_isas(), reason="its vectors are real, and all tests use them"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif("avx2" not in cpu.runnable_isas(), reason="needs the kernels, built, and AVX2"),
    pytest.mark.timeout(7200),
]


@pytest.fixture(scope="module", params=["avx512", "avx512fma"])
def emulated(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    build_for_avx512(request.param, folder)
    return folder, request.param


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_tests_of_kernels_and_whole_models_pass(emulated, subject):
    run_tests(*emulated, *(f"tests/workers/{place}" for place in SUBJECTS[subject]), "-m", "not nightly")
