"""A server under a mixed load for an hour: does anything grow that should not?

`python scripts/soak.py --minutes 60 --seed 1`. Streams over HTTP, over HTTP with keys and over ZeroMQ, chat,
completions, templates, bad requests, connections that break, go on, or never ask; every answer is compared. Prints: how
each process' memory grows in an hour, with a 95 % confidence interval. Ends with 1 when one surely grows by more than
1 MB an hour and has grown beyond what the interpreter keeps (4 MB), when files, threads or blocks are not given back,
or when an answer is wrong; the log is kept then.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from judged_run import judged_run

from tests.end_to_end.server_process import ServerProcess
from tests.soak.run import OPTIONS, Soak, run


def parse() -> Soak:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the time before the first look")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=9, help="at once, a third over ZeroMQ")
    parser.add_argument("--places", type=int, default=5, help="others at once")
    given = parser.parse_args()
    return Soak(given.minutes, given.seed, given.warm_up, given.streams, given.places)


def main() -> int:
    soak = parse()

    def judge(server: ServerProcess) -> tuple[str, bool]:
        report = run(soak, server)
        return report.text(), not report.failures

    return judged_run(OPTIONS, soak.command_line, judge)


if __name__ == "__main__":
    sys.exit(main())
