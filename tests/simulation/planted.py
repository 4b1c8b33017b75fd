"""Runs the simulations on a copy of the sources, optionally with a planted bug.

`python -m tests.simulation.planted [NUMBER]`, from the repository's root. The exit status is 0 if all seeds pass, and
CAUGHT if one fails.
"""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
CAUGHT = 10
ROOMS = ("protocol", "engine_core", "frontend")
# 115, 1017: a request is sent again with another key, with siblings; 134: a value that is not finite is behind a
# window before it is detected; 374: a step has room for all but a token of a bidirectional prompt; 413: a state is
# copied while a later token is computed; 510: a chunk is withdrawn from its plan; 1138: a sequence with states ends
# while a later token is computed; 2651: tails that differ in their first token; 2777: a copy of a copy in one step;
# 10119: siblings start after their leader's next chunk
SEEDS = (*range(80), 115, 134, 374, 413, 510, 1017, 1138, 2651, 2777, 10119)
WORLDS, DEADLY_WORLDS, LINKS = range(25), range(30), range(10)
CHECK_FLAG = "--in-copy"


def copy_sources(folder: Path) -> None:
    """Copy the code that simulations import in the same layout; the package's folders are links, as in ours."""
    for name in ROOMS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "paged_serve", folder / "paged_serve", symlinks=True)
    (folder / "tests").mkdir()
    (folder / "tests" / "__init__.py").touch()
    for name in ("simulation", "frontend"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name)


def plant(folder: Path, mutation: tuple[str, str, str, str]) -> None:
    file, old, new, _ = mutation
    source = (folder / file).read_text()
    found = source.count(old)
    assert found == 1, f"{file} contains {old!r} {found} times; a mutation needs exactly one"
    (folder / file).write_text(source.replace(old, new))


def run(mutation: tuple[str, str, str, str] | None, limit_s: float) -> tuple[int, str]:
    """The exit code of all simulations on a copy, and their output; CAUGHT also if they do not end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_sources(folder)
        if mutation is not None:
            plant(folder, mutation)
        command = [sys.executable, "-P", "-m", "tests.simulation.planted", CHECK_FLAG]
        environment = {**os.environ, "PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=name, env=environment, capture_output=True, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return CAUGHT, f"not finished after {limit_s} s"
        return done.returncode, done.stdout[-3000:] + done.stderr[-3000:]


def check() -> int:
    from paged_serve.engine_core.simulation.simulator import simulate
    from paged_serve.frontend.client import dispatch

    from ..frontend.client.test_client_simulation import test_streams_are_exact_under_every_fault
    from .world import World

    logging.disable(logging.CRITICAL)
    try:
        for seed in SEEDS:
            simulate(seed)
        for seed in WORLDS:
            World(seed).run()
        for seed in DEADLY_WORLDS:
            World(seed, 11).run()
        dispatch.DEADLY_ISOLATIONS = 1  # a single wrong verdict then ends a request
        for seed in DEADLY_WORLDS:
            World(seed, 11).run()
        for seed in LINKS:
            test_streams_are_exact_under_every_fault(seed)
    except Exception:
        traceback.print_exc()
        return CAUGHT
    return 0


def main() -> int:
    if sys.argv[1:] == [CHECK_FLAG]:
        return check()
    from .mutations import MUTATIONS

    code, output = run(MUTATIONS[int(sys.argv[1])] if len(sys.argv) > 1 else None, 300)
    print(output)
    return code


if __name__ == "__main__":
    sys.exit(main())
