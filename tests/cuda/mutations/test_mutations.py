"""Tests the checks: every bug of mutations_*.py, planted in a copy of csrc/cuda, must make a check fail."""

import hashlib
import os
import random
import subprocess
import sys

import pytest

from ..compilation.production import SOURCES
from .planted import CAUGHT, TESTS, families, mutations

ROOT = TESTS.parents[1]
LIMIT_S = 300
CASES = [(family, number) for family in families("mutations") for number in range(len(mutations(family)))]
EQUIVALENT = [
    (family, len(mutations(family)) + number)
    for family in families("mutations")
    for number in range(len(mutations(family, "EQUIVALENT")))
]
IN_CI = 1
# The mutations that run outside nightly are chosen by a hash of the sources, so each change of them runs others.
CHOICE = random.Random(hashlib.sha256(repr(SOURCES).encode()).digest())
CHOSEN = CHOICE.sample(CASES, min(IN_CI, len(CASES)))


def run(*arguments: object, preload: str = "") -> tuple[int, str]:
    """(exit code, output); the code is negative if a signal ended the process, CAUGHT if it did not end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if preload:
        environment |= {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0"}
    command = [sys.executable, "-m", "tests.cuda.mutations.planted", *map(str, arguments)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return CAUGHT, f"did not end in {LIMIT_S} s"
    return done.returncode, done.stdout[-4000:] + done.stderr[-4000:]


def must_be_caught(family: str, number: int) -> None:
    code, output = run(family, number)
    assert code == CAUGHT or code < 0, f"no check detected {mutations(family)[number]}\n{output}"


def asan() -> str:
    """AddressSanitizer's library, which must be loaded into a process before Python."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


@pytest.mark.parametrize("family", families("mutations"))
def test_each_bug_has_a_place(family):
    for file, text, replacement, effect in (*mutations(family), *mutations(family, "EQUIVALENT")):
        assert SOURCES[file].count(text) == 1, (file, text, effect)
        assert replacement != text


@pytest.mark.nightly  # the tests of kernels make the same checks
@pytest.mark.parametrize("family", families("checks"))
def test_a_check_passes_without_a_planted_bug(family):
    code, output = run(family)
    assert code == 0, output


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(("family", "number"), CHOSEN)
def test_some_planted_bugs_are_caught(family, number):
    must_be_caught(family, number)


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(("family", "number"), CASES)
def test_every_planted_bug_is_caught(family, number):
    must_be_caught(family, number)


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(("family", "number"), EQUIVALENT)
def test_a_mutation_listed_as_equivalent_is_not_caught(family, number):
    code, output = run(family, number)
    assert code == 0, f"the mutation is detected, so it belongs to MUTATIONS\n{output}"


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("family", families("checks"))
def test_the_address_sanitizer_finds_nothing(family):
    code, output = run(family, "--sanitize", preload=asan())
    assert code == 0, output
