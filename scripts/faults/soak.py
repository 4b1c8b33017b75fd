"""Run a server under a mixed load for an hour and check that no process leaks.

    python scripts/faults/soak.py --minutes 60 --seed 1

The load has streams over HTTP, over HTTP with keys and over ZeroMQ, chats, completions, templates, bad requests, and
connections that break, resume, or never send a request; every answer is compared. Prints the growth of each process's
memory per hour with a 95 % confidence interval. The exit status is 1, and the log is kept, if a process certainly grows
by more than 1 MB per hour and has grown beyond what the interpreter retains (4 MB), if files, threads or blocks are not
released, or if an answer is wrong.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from judged_run import judged_run

from tests.end_to_end.server_process import ServerProcess
from tests.soak.run import OPTIONS, Soak, run


def parse() -> Soak:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the time before the first measurement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=9, help="concurrent streams, a third over ZeroMQ")
    parser.add_argument("--places", type=int, default=5, help="other requests that run concurrently")
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
