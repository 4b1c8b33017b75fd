"""Fuzz a real server with corrupted HTTP requests over many connections; no status may be 500 or above but 501.

    python scripts/faults/fuzz_http.py --count 1_000_000 --seed 1

`--limit-s` ends it early. The exit status is 1, and the bytes are printed, if the server answered with 500 or above
(but 501, of a route of other servers that is refused by name), logged a traceback or stopped answering.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.end_to_end.serving import serving
from tests.security.http.http_fuzz import fuzz


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    return parser.parse_args()


def main() -> int:
    given = parse()
    with serving("--max-model-len", "128", "--num-blocks", "256", "--threads", "1") as server:
        started = time.monotonic()
        seen = fuzz(server, given.seed, given.count, given.limit_s)
        took_s = time.monotonic() - started
    print(f"{seen.total():,} answers in {took_s:.0f} s, {seen.total() / took_s:,.0f} per second; 0: closed without one")
    print(dict(sorted(seen.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
