"""Fuzz the links: corrupt millions of valid frames and pass them to the real decoders and the engine behind them.

    python scripts/faults/fuzz_frames.py --count 100_000_000

Runs rounds of 2^20 frames, each from one seed, several in parallel; `--seed` is the seed of the first round, so that
`--count 1 --seed N` repeats round N. After `--limit-s` seconds no further round starts, and the last line prints the
next seed. The exit status is 1, and the frame is printed, if anything raised an exception.
"""

import argparse
import itertools
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.protocol.frame_fuzz import ROUND_FRAMES, Outcomes, fuzz_round


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000, help="minimum number of frames")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    return parser.parse_args()


def seeds(given: argparse.Namespace, deadline_s: float) -> Iterator[int]:
    for number in range(-(-given.count // ROUND_FRAMES)):
        if time.monotonic() < deadline_s:
            yield given.seed + number


def main() -> int:
    given = parse()
    started, total, num_rounds = time.monotonic(), Outcomes(), 0
    waiting = seeds(given, started + given.limit_s)
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        while group := list(itertools.islice(waiting, given.processes)):
            for outcomes in pool.map(fuzz_round, group, chunksize=1):
                total.add(outcomes)
                num_rounds += 1
        pool.close()
        pool.join()
    took_s, used = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(total)
    print(f"{took_s:.0f} s, {cpu_s:.0f} CPU-seconds, {total.frames / cpu_s:,.0f} frames per CPU-second")
    print(f"next: --seed {given.seed + num_rounds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
