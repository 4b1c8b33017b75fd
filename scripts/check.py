"""Run all checks that a commit must pass: lint, format, types, generated docs, tests.

    .venv/bin/python scripts/check.py [--isas] [pytest options]

All tests run with the best CPU kernels that this machine supports. The tests of whole models run again with the
portable kernels, each value of their parameters once. With `--isas`, only those tests run, all of them, on each
instruction set except the best one. (Tests of single kernels always compare the bits of all instruction sets.) Tests
marked `alone` run last, in one process.

Stops at the first failure, or when a step takes longer than LIMIT_S. The interpreter needs the `dev` extra.
"""

import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 2400
ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
ISAS = "--isas"
OPTIONS = [option for option in sys.argv[1:] if option != ISAS]
PYTEST = [PYTHON, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal"]
STEPS: list[list[str]] = [
    [PYTHON, "-m", "ruff", "check", "."],
    [PYTHON, "-m", "ruff", "format", "--check", "."],
    [PYTHON, "-m", "mypy", "-p", "paged_serve"],
    [PYTHON, "scripts/make_docs.py", "--check"],
    [*PYTEST, "-m", "not nightly and not alone", *OPTIONS],
    [PYTHON, "-m", "pytest", "-q", "-m", "alone and not nightly", "tests/engine_core"],
]


def steps_of_other_isas(products: str) -> list[list[str]]:
    """Tests of whole models on every instruction set except the best; `products`: --products of tests/conftest.py."""
    from paged_serve.workers.kernels.cpu.library import runnable_isas

    others = ["tests/workers", "-m", "chosen_isa and not nightly", "--products", products, "--cpu-isa"]
    return [[*PYTEST, *OPTIONS, *others, isa] for isa in runnable_isas()[1:]]


def run(command: list[str]) -> int:
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"  took longer than {LIMIT_S} s", flush=True)
        return 1


def main() -> int:
    steps = steps_of_other_isas("pairs") if ISAS in sys.argv else [*STEPS, *steps_of_other_isas("values")[-1:]]
    for command in steps:
        started = time.monotonic()
        print("$", " ".join(["python", *command[1:]]), flush=True)
        code = run(command)
        print(f"  {time.monotonic() - started:.1f} s, exit {code}", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
