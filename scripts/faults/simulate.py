"""Simulate the engine under faults for millions of steps, and check every step.

    python scripts/faults/simulate.py --steps 10_000_000

Each simulation runs one seed. A failure prints its seed, and `--seed N --steps 1` repeats it. After `--limit-s` seconds
no further batch of 50 simulations starts, and the last line prints the next seed. The exit status is 1 if any
simulation fails.
"""

import argparse
import logging
import multiprocessing
import resource
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from paged_serve.engine_core.simulation.outcomes import Outcomes
from paged_serve.engine_core.simulation.simulator import simulate

BATCH = 50  # simulations that a process runs before it returns their outcomes


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="minimum number of steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first simulation")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fails", action="store_true", help="at times, no token can be sampled")
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    return parser.parse_args()


def simulate_batch(first_seed: int, *, fails: bool) -> Outcomes:
    logging.disable(logging.CRITICAL)  # poison requests are expected
    total = Outcomes()
    for seed in range(first_seed, first_seed + BATCH):
        total.add(simulate(seed, fails=fails)[0])
    return total


def main() -> int:
    options = parse()
    run_batch = partial(simulate_batch, fails=options.fails)
    started, total, next_seed = time.monotonic(), Outcomes(), options.seed
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        while total.steps < options.steps and time.monotonic() - started < options.limit_s:
            first_seeds = [next_seed + BATCH * number for number in range(options.processes)]
            for outcomes in pool.map(run_batch, first_seeds, chunksize=1):
                total.add(outcomes)
            next_seed += BATCH * options.processes
        pool.close()
        pool.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(total)
    speed = f"{total.steps / cpu_s:,.0f} steps per CPU-second"
    print(f"{time.monotonic() - started:.0f} s, {cpu_s:.0f} CPU-seconds, {speed}")
    print(f"next: --seed {next_seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
