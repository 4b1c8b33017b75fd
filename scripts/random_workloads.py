"""The promise over many random workloads, by instruction set and by what the products are of.

`python scripts/random_workloads.py --isa avx2 --dtype int8 --count 1000`. Each is one number, as in
tests/workers/invariance/test_random_workloads.py, with the instruction set and the form given here in place of those
that the number draws: a small server, requests, faults, and the output of each request compared, bit for bit, with
its output alone. Without --isa every one that this machine runs, without --dtype every form, COUNT workloads for
each pair. `--limit-s` ends it early. Prints a line for each pair; the first difference ends it with an exception that
names the number.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import get_args

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from paged_serve.workers.kernels.cpu import library as cpu
from tests.workers.invariance.random_workload import Form, draw_workload
from tests.workers.invariance.test_random_workloads import run_workload
from tests.workers.invariance.workload_models import Models

COUNTED = ("requests", "streams", "tokens", "steps", "preemptions", "aborts", "restarts", "cached tokens")


def parse() -> argparse.Namespace:
    isas, forms = cpu.runnable_isas(), get_args(Form)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", nargs="+", choices=isas, default=isas)
    parser.add_argument("--dtype", nargs="+", choices=forms, default=forms, help="int8 and int4 are quantized on load")
    parser.add_argument("--count", type=int, default=1000, help="of each pair")
    parser.add_argument("--seed", type=int, default=0, help="the first number")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no workload begins after it")
    return parser.parse_args()


def main() -> int:
    given = parse()
    torch.set_num_threads(1)
    ends = time.monotonic() + given.limit_s
    for isa in given.isa:
        for form in given.dtype:
            with tempfile.TemporaryDirectory() as home:
                show(isa, form, run(Path(home), isa, form, range(given.seed, given.seed + given.count), ends))
    return 0


def run(home: Path, isa: str, form: Form, seeds: range, ends: float) -> Counter[str]:
    """What was counted over as many workloads as began before `ends`."""
    total, models = Counter[str](), Models(home)
    try:
        for seed in seeds:
            if time.monotonic() >= ends:
                break
            total += run_workload(models.load, seed, draw=partial(draw_workload, form=form, isa=isa))
    except BaseException as error:
        error.add_note(f"to repeat: python {Path(__file__)} --isa {isa} --dtype {form} --seed {seed} --count 1")
        raise
    finally:
        models.close()
    return total


def show(isa: str, form: Form, total: Counter[str]) -> None:
    counts = ", ".join(f"{total[name]} {name}" for name in COUNTED)
    print(f"{isa} {form}: {total['workloads']} workloads equal: {counts}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
