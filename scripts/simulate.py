"""Simulations of the engine under faults, every step checked, by the million.

`python scripts/simulate.py --steps 10_000_000`. A life is one seed; a failure names it, and `--seed N --steps 1` lives
it again. `--limit-s` ends it early: no fifty lives begin after it, and the last line names the next seed. Ends
with 1 when any life was wrong.
"""

import argparse
import logging
import multiprocessing
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from paged_serve.engine_core.simulation.outcomes import Outcomes
from paged_serve.engine_core.simulation.simulator import simulate

LIVES = 50  # of one process, at a time


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first life")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    return parser.parse_args()


def live(first_seed: int) -> Outcomes:
    logging.disable(logging.CRITICAL)  # of requests that kill workers, and do
    total = Outcomes()
    for seed in range(first_seed, first_seed + LIVES):
        total.add(simulate(seed)[0])
    return total


def main() -> int:
    given = parse()
    started, total, next_seed = time.monotonic(), Outcomes(), given.seed
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        while total.steps < given.steps and time.monotonic() - started < given.limit_s:
            group = [next_seed + LIVES * number for number in range(given.processes)]
            for outcomes in pool.map(live, group, chunksize=1):
                total.add(outcomes)
            next_seed += LIVES * given.processes
        pool.close()
        pool.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(total)
    print(f"{time.monotonic() - started:.0f} s, {cpu_s:.0f} s of CPU, {total.steps / cpu_s:,.0f} steps in one of them")
    print(f"next: --seed {next_seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
