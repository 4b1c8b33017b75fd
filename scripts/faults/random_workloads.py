"""Check determinism with many random workloads, for each instruction set and number format of the products.

    python scripts/faults/random_workloads.py --isa avx2 --dtype int8 --count 1000

Each workload is drawn from a seed as in tests/workers/invariance/workloads/test_random_workloads.py: a small server,
requests and faults; the output of each request must equal, bit for bit, its output alone. The instruction set and the
format given here replace those drawn from the seed. Without --isa, all that this machine supports are tested; without
--dtype, all formats; COUNT workloads per pair. `--limit-s` ends the run early. Prints one line per pair; the first
difference raises an exception that contains the seed.
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

sys.path.insert(0, str(Path(__file__).parents[2]))

from paged_serve.workers.kernels.cpu import library as cpu
from tests.workers.invariance.workloads.random_workload import Form, draw_workload
from tests.workers.invariance.workloads.test_random_workloads import run_workload
from tests.workers.invariance.workloads.workload_models import Models

COUNTED = ("requests", "streams", "tokens", "steps", "preemptions", "aborts", "restarts", "cached tokens")


def parse() -> argparse.Namespace:
    isas, forms = cpu.runnable_isas(), get_args(Form)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", nargs="+", choices=isas, default=isas)
    parser.add_argument("--dtype", nargs="+", choices=forms, default=forms, help="int8 and int4 are quantized on load")
    parser.add_argument("--count", type=int, default=1000, help="workloads per pair")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no workload starts after this time")
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
    """Run the workloads of `seeds` until the time `ends`; returns their counts."""
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
