"""A server under load whose processes are killed, halted and crashed at random; every stream is compared to the byte.

`python scripts/chaos.py --minutes 30 --every 15 --seed 1`. The same seed draws equal requests, faults and pauses; what
processes do at that moment is not in it. Ends with 1 when a stream was wrong or lost, when a block, a process
or a file is left, or when the server has given up; the server's log is kept then.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from judged_run import judged_run

from tests.chaos.campaign import EVERYTHING, Campaign, run
from tests.end_to_end.server_process import ServerProcess


def parse() -> Campaign:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=15.0, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--streams", type=int, default=32, help="at once, a third each over HTTP, over HTTP with keys, over ZeroMQ"
    )
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pairs", type=float, default=0.5, help="share of the faults that hit two processes at once")
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--only", action="append", choices=EVERYTHING, metavar="ROLE:SIGNAL", help="repeatable")
    given = parser.parse_args()
    kinds = tuple(given.only) if given.only else EVERYTHING
    return Campaign(
        given.seed, 60 * given.minutes, given.every, given.streams, kinds, given.tp, given.pairs, given.frontends
    )


def main() -> int:
    campaign = parse()

    def judge(server: ServerProcess) -> tuple[str, bool]:
        ledger = run(campaign, server)
        return ledger.report(), not ledger.wrong and not ledger.lost

    return judged_run(campaign.options, campaign.command_line, judge)


if __name__ == "__main__":
    sys.exit(main())
