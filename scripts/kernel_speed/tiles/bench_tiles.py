"""Take products in tile order apart: what does each cost of them take on this machine with AMX?

    python scripts/kernel_speed/tiles/bench_tiles.py [--program FILE] [--build-only]

Runs tile_loops.cpp, which has the loops, on one processor, on two of one core (siblings), which share its caches and
its tile unit, and on two of different cores. A table shows cycles per dot or load of tiles; a cycle is a sixteenth of a
dot in the loop of dots alone on one processor, for a dot takes 16 cycles (Intel's optimization manual). Run it where
nothing else runs. The program is compiled into build/, unless it exists: `--build-only` on another machine makes it for
one without a compiler. The last line is JSON, in nanoseconds.
"""

import argparse
import json
import os
import runpy
import subprocess
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
CORES = Path("/sys/devices/system/cpu")
CYCLES_OF_A_DOT = 16


def build(program: Path) -> None:
    """Compile with the flags of the amx library."""
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="flags")
    flags = [*setup["FLAGS"], *setup["FLAGS_BY_MACHINE"]["x86_64"]["amx"], "-I", str(ROOT / "csrc/cpu")]
    program.parent.mkdir(exist_ok=True)
    subprocess.run(["g++", *flags, str(HERE / "tile_loops.cpp"), "-o", str(program)], check=True)


def placements() -> dict[str, list[int]]:
    """The processors of each way to run, as far as this process may use them."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = [(CORES / f"cpu{i}/topology/thread_siblings_list").read_text().strip() for i in allowed]
    found = {"alone": allowed[:1]}
    for name, of_one_core in (("siblings", True), ("two cores", False)):
        others = [i for i, core in zip(allowed, cores, strict=True) if (core == cores[0]) == of_one_core]
        if others := [i for i in others if i != allowed[0]]:
            found[name] = [allowed[0], others[0]]
    return found


def measure(program: Path, processors: list[int]) -> dict[str, tuple[str, float]]:
    """Of each loop what it counts, and the nanoseconds of each."""
    done = subprocess.run([str(program), *map(str, processors)], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:  # it has said why
        raise SystemExit(done.returncode)
    lines = (line.split("\t") for line in done.stdout.splitlines())
    return {name: (unit, float(ns)) for name, unit, ns in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/tile_loops", help="built if it does not exist")
    parser.add_argument("--build-only", action="store_true")
    options = parser.parse_args()
    if options.build_only or not options.program.exists():
        build(options.program)
    if options.build_only:
        return
    found = {name: measure(options.program, processors) for name, processors in placements().items()}
    cycle = found["alone"]["dots alone"][1] / CYCLES_OF_A_DOT
    print(f"a cycle is {cycle:.3f} ns; cycles per dot or load:")
    print(f"{'':34}{'each':8}" + "".join(f"{name:>12}" for name in found))
    for loop, (unit, _) in found["alone"].items():
        print(f"{loop:34}{unit[:-1]:8}" + "".join(f"{results[loop][1] / cycle:12.1f}" for results in found.values()))
    print(json.dumps({"placements": placements(), "ns": found}))


if __name__ == "__main__":
    main()
