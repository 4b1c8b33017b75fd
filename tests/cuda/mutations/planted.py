"""Runs the check of one family of kernels in the emulator, optionally with a bug planted in a copy of the sources.

`python -m tests.cuda.mutations.planted FAMILY [NUMBER] [--sanitize]` is a separate process, because a bug may crash
it. Its exit code is 0 if the check passes under every schedule, CAUGHT if it fails under one. The families are the
modules checks/checks_FAMILY.py, each with a `check_FAMILY(launcher)`; mutations_FAMILY.py lists the bugs.
"""

import importlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paged_serve.workers.kernels.cuda.kernel import FOLDER, Launcher

from ..emulated import SCHEDULES, EmulatorError, EmulatorLauncher

TESTS = Path(__file__).parents[1]
CAUGHT, NOT_COMPILED = 10, 11
SANITIZE = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1", "-O1")


class Mutation(NamedTuple):
    """Replaces the only occurrence of `old` in `file` by `new`."""

    file: str
    old: str
    new: str
    why: str  # the effect of the bug; for an equivalent mutation, the reason why no test can detect it

    def plant(self, folder: Path) -> None:
        source = (folder / self.file).read_text()
        found = source.count(self.old)
        assert found == 1, f"{self.file} contains {self.old!r} {found} times; a mutation needs exactly one"
        (folder / self.file).write_text(source.replace(self.old, self.new))


def families(kind: str) -> list[str]:
    """The families of the modules KIND/KIND_FAMILY.py."""
    return sorted(path.stem.removeprefix(f"{kind}_") for path in (TESTS / kind).glob(f"{kind}_*.py"))


def mutations(family: str, name: str = "MUTATIONS") -> list[Mutation]:
    """The mutations that must be caught, or the EQUIVALENT ones."""
    module = importlib.import_module(f"..mutations.mutations_{family}", __package__)
    return [Mutation(*mutation) for mutation in getattr(module, name, ())]


def check_of(family: str) -> Callable[[Launcher], None]:
    module = importlib.import_module(f"..checks.checks_{family}", __package__)
    check: Callable[[Launcher], None] = getattr(module, f"check_{family}")
    return check


def first_failure(check: Callable[[Launcher], None], folder: Path, options: tuple[str, ...]) -> int:
    for schedule in SCHEDULES:
        try:
            check(EmulatorLauncher(folder, schedule, options))
        except Exception as error:  # with wrong results a check may raise anything
            print(schedule)
            traceback.print_exc()
            return NOT_COMPILED if isinstance(error, EmulatorError) and "does not compile" in str(error) else CAUGHT
    return 0


def main(family: str, *arguments: str) -> int:
    options = SANITIZE if "--sanitize" in arguments else ()
    numbers = [int(argument) for argument in arguments if argument.isdecimal()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cuda"
        shutil.copytree(FOLDER, folder)
        for number in numbers:
            [*mutations(family), *mutations(family, "EQUIVALENT")][number].plant(folder)
        return first_failure(check_of(family), folder, options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
