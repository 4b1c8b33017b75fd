"""Damages valid frames of every link by the million and gives them to the real decoders and the engine behind them.

`python scripts/fuzz_frames.py --count 100_000_000`. Works in rounds of 2^20 frames, each from one seed, several at
once; `--seed` is the first round's, so `--count 1 --seed N` runs round N again. `--limit-s` ends it early: no round
begins after it, and the last line names the next seed. Ends with 1, and shows the frame, when anything raised.
"""

import argparse
import itertools
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.protocol.frame_fuzz import ROUND_FRAMES, Outcomes, fuzz_round


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000, help="frames at least")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
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
    print(f"{took_s:.0f} s, {cpu_s:.0f} s of CPU, {total.frames / cpu_s:,.0f} frames in one of them")
    print(f"next: --seed {given.seed + num_rounds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
