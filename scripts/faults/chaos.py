"""Kill, stop and crash random processes of a server under load, and compare every stream byte by byte.

The server speculates, has LoRA adapters, more than places, and keeps evicted blocks in a tier on disk.

    python scripts/faults/chaos.py --minutes 30 --every 15 --seed 1

The same seed draws the same requests, faults and pauses, but not the state of the processes at that moment. The exit
status is 1, and the server's log is kept, if a stream is wrong or lost, if a block, a process or a file is left, or if
the server has ended by itself.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from judged_run import judged_run

from tests.chaos.campaign import EVERYTHING, Campaign, prepare, run
from tests.end_to_end.server_process import ServerProcess


def parse() -> Campaign:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=15.0, help="mean seconds between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--streams",
        type=int,
        default=32,
        help="concurrent: a fifth each over HTTP completions and chat, both with keys and without, and ZeroMQ",
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

    return judged_run(campaign.options, campaign.command_line, judge, prepare)


if __name__ == "__main__":
    sys.exit(main())
