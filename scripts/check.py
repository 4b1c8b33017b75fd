"""Everything that must be green before a commit lands: lint, format, types, generated docs, tests.

All tests run on the best CPU kernels that this machine runs. Those that whole models compute with run again on the
portable ones, each value of their parameters once; with `--isas` these tests alone run, all of them, on each
instruction set but the best. (Kernel by kernel, all are always held to each other's bits.) Tests marked `alone` follow
the others, in one process.

Stops at the first failure, or when a step takes longer than LIMIT_S. Run it with the interpreter that has the `dev`
extra: `.venv/bin/python scripts/check.py [--isas] [pytest options]`.
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
    """The best one has been tested by then; `products` is pytest's option of tests/conftest.py."""
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
