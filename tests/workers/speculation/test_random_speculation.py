"""Random workloads of any model, form, number of ranks and drafter keep the bytes of plain decoding.

    .venv/bin/python -m tests.workers.speculation.test_random_speculation --count 1000 --seed 0

Each draws its requests with every sampling parameter, grammars, several outputs of one prompt, preemptions, pauses and
shared prefixes, plays each request plainly and alone, and then all of them together with drafts.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.speculation.drafter import Drafter
from paged_serve.workers.speculation.ngram import NgramDrafter
from paged_serve.workers.speculation.suffix import SuffixDrafter

from ..invariance.workloads.random_workload import ModelChoice
from ..invariance.workloads.workload_models import Models
from .test_verification import FORMS
from .workloads import TOKENIZER, TOKENS_OF_GRAMMARS, Bench, played_alike

UNDIVIDED = ("int4", "windows in groups")  # 96 inputs are three groups of 32; heads
DRAFTERS = ("known", "known", "ngram", "suffix", "suffix")


class Workloads:
    def __init__(self, models: Models):
        self._models = models
        self._grammars: Grammars | None = None

    def play(self, seed: int) -> Counter[str]:
        """Play one, and return how many drafts were made and accepted."""
        rng = random.Random(f"speculation {seed}")
        form = rng.choice(("demo", "demo", *FORMS))
        ranks = 1 if form in ("demo", *UNDIVIDED) else rng.choice((1, 1, 1, 2, 4))
        drafter: Drafter | None = {"ngram": NgramDrafter(), "suffix": SuffixDrafter(512)}.get(rng.choice(DRAFTERS))
        together = self._bench(form, ranks) if ranks > 1 else None
        planner = played_alike(self._bench(form, 1), seed, drafter, together, has_siblings=True)
        return Counter(planner.drafts)

    def _bench(self, form: str, ranks: int) -> Bench:
        isa = cpu.runnable_isas()[0]
        if form == "demo":
            if self._grammars is None:
                self._grammars = Grammars(TOKENIZER, TOKENS_OF_GRAMMARS, (2, 0))
            return Bench(self._models.load(ModelChoice("demo", "auto", isa, threads=1)), self._grammars)
        checkpoint, quantization, dtype, cache_dtype = FORMS[form]
        choice = ModelChoice(checkpoint, quantization, isa, 1, ranks, dtype)
        return Bench(self._models.load(choice), cache_dtype=cache_dtype)


@pytest.fixture(scope="module")
def workloads(tmp_path_factory, chosen_isa):
    if not cpu.runnable_isas():
        pytest.skip("the kernels are not built")
    models = Models(tmp_path_factory.mktemp("models"), chosen_isa)
    yield Workloads(models)
    models.close()


def play_all(workloads: Workloads, seeds) -> Counter[str]:
    return sum((workloads.play(seed) for seed in seeds), Counter[str]())


def test_random_workloads_keep_their_bytes(workloads):
    drafts = play_all(workloads, range(1, 4))
    assert drafts["accepted"] > 10
    assert drafts["made"] > drafts["accepted"] + 10


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_random_workloads_keep_their_bytes(workloads, first):
    play_all(workloads, range(first, first + 100))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started, drafts = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory() as home:
        models = Models(Path(home))
        workloads = Workloads(models)
        for number, seed in enumerate(range(options.seed, options.seed + options.count), start=1):
            drafts += workloads.play(seed)
            if number % 10 == 0 or number == options.count:
                print(f"{number} workloads alike, {dict(drafts)}, {time.monotonic() - started:.0f} s", flush=True)
        models.close()


if __name__ == "__main__":
    main()
