"""Run all checks that a commit must pass: lint, format, types, generated docs, tests.

All tests run with the best CPU kernels that this machine supports; tests of single kernels, and a few of whole models,
compare the bits of all instruction sets. With `--isas`, only the tests of whole models run, on each instruction set
except the best one. Types are checked beside the tests, as tests of servers often wait. Tests marked `alone` run last,
in one process.

Stops at the first failure, or when a step takes longer than LIMIT_S. The interpreter needs the `dev` extra.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LIMIT_S = 3600
ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal"]
FIRST = [
    [PYTHON, "-m", "ruff", "check", "."],
    [PYTHON, "-m", "ruff", "format", "--check", "."],
    [PYTHON, "scripts/make_docs.py", "--check"],
]
TYPES = [PYTHON, "-m", "mypy", "-p", "paged_serve"]
TESTS = [*PYTEST, "-m", "not nightly and not alone"]
# With this variable, each of the many processes that tests start would compile all of its modules again.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ALONE = [PYTHON, "-m", "pytest", "-q", "-m", "alone and not nightly", "tests/engine_core"]


def isas(options: Sequence[str]) -> list[list[str]]:
    """Tests of whole models on every instruction set except the best."""
    from paged_serve.workers.kernels.cpu.library import runnable_isas

    others = ["tests/workers", "-m", "chosen_isa and not nightly", "--cpu-isa"]
    return [[*PYTEST, *options, *others, isa] for isa in runnable_isas()[1:]]


def run(command: list[str]) -> None:
    """Exits if the command fails."""
    started = time.monotonic()
    print("$", text_of(command), flush=True)
    try:
        code = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"  took longer than {LIMIT_S} s", flush=True)
        code = 1
    print(f"  {time.monotonic() - started:.1f} s, exit {code}", flush=True)
    if code:
        sys.exit(code)


@contextmanager
def beside(command: list[str]) -> Iterator[None]:
    """Runs the command meanwhile; its output comes at the end, where a failure exits."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        print(f"$ {text_of(command)}  (meanwhile)\n{output.read()}  exit {code}", flush=True)
    if code:
        sys.exit(code)


def text_of(command: list[str]) -> str:
    return " ".join(["python", *command[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Further options are passed to pytest.", allow_abbrev=False
    )
    parser.add_argument("--isas", action="store_true", help="test whole models on the other instruction sets")
    arguments, options = parser.parse_known_args()
    if arguments.isas:
        for command in isas(options):
            run(command)
        return
    for command in FIRST:
        run(command)
    with beside(TYPES):
        run([*TESTS, *options])
    run(ALONE)


if __name__ == "__main__":
    main()
