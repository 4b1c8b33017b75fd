"""Everything that must be green before a commit lands: lint, format, types, generated docs, tests.

Stops at the first failure, or when a step takes longer than LIMIT_S. Run it with the interpreter that has the `dev`
extra: `.venv/bin/python scripts/check.py [pytest options]`.
"""

import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 1500
ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
STEPS: list[list[str]] = [
    [PYTHON, "-m", "ruff", "check", "."],
    [PYTHON, "-m", "ruff", "format", "--check", "."],
    [PYTHON, "-m", "mypy", "-p", "paged_serve"],
    [PYTHON, "scripts/make_docs.py", "--check"],
    [PYTHON, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *sys.argv[1:]],
]


def run(command: list[str]) -> int:
    try:
        return subprocess.run(command, cwd=ROOT, check=False, timeout=LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"  took longer than {LIMIT_S} s", flush=True)
        return 1


def main() -> int:
    for command in STEPS:
        started = time.monotonic()
        print("$", " ".join(["python", *command[1:]]), flush=True)
        code = run(command)
        print(f"  {time.monotonic() - started:.1f} s, exit {code}", flush=True)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
