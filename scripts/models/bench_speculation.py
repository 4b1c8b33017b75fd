"""Tokens per second with drafts and without, in turn, and whether the tokens are the same.

    python scripts/models/made_chain.py CHAIN
    nice -n -15 .venv/bin/python scripts/models/bench_speculation.py CHAIN --rounds 3

The model's greedy text is known (made_chain.py), so each load decides which drafts are right:

* edit: the prompt has the answer with every 40th token changed; the drafts are right up to a changed token;
* again: the answer was given before, to the same prompt, which does not have it;
* new: no part of the text occurs twice, so no drafts are made;
* wrong: after each run of three tokens of the answer, the prompt goes on otherwise: no draft is right;
* sampled: every token is random.

With --method mtp the model is one with mtp_percent: so often its drafts are right in all loads, but less where tokens
are random.

Last, the steps for a JSON object of ten fields with the demo model, whose keys its grammar drafts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from made_chain import cycle

from paged_serve import LLM, SamplingParams, StructuredOutputsParams

VOCAB, EDIT_EVERY = 32_000, 40
FIELDS = ["number", "customer", "street", "city", "country", "article", "colour", "size", "amount", "date"]
SCHEMA = {
    "type": "object",
    "properties": {f"{name}_of_the_order": {"type": "string", "pattern": "^[a-z]{3,8}$"} for name in FIELDS},
    "required": [f"{name}_of_the_order" for name in FIELDS],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Load:
    kind: str
    num_rows: int
    num_tokens: int

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.num_rows} rows of {self.num_tokens} tokens"

    def prompts(self, number: int) -> list[list[int]]:
        """Those of one measurement, different for each `number`: no answer helps the next but where it is meant to."""
        rng = np.random.default_rng([number, *self.name.encode()])
        order = cycle(VOCAB)
        return [self._prompt(order, rng) for _ in range(self.num_rows)]

    def _prompt(self, order: np.ndarray, rng: np.random.Generator) -> list[int]:
        start = int(rng.integers(VOCAB))
        text = order[(start + np.arange(self.num_tokens + 3)) % VOCAB]
        strange = rng.integers(VOCAB, size=len(text))
        if self.kind == "edit":
            edited = text.copy()
            edited[EDIT_EVERY::EDIT_EVERY] = strange[EDIT_EVERY::EDIT_EVERY]
            return [*edited.tolist(), int(text[0])]
        if self.kind == "wrong":
            runs = np.stack([text[:-3], text[1:-2], text[2:-1], strange[:-3]], axis=1)
            return [*runs.ravel().tolist(), *text[:3].tolist()]
        return [*strange[:63].tolist(), int(text[0])]

    @property
    def params(self) -> SamplingParams:
        temperature = 1.0 if self.kind == "sampled" else 0.0
        return SamplingParams(temperature=temperature, seed=1, max_tokens=self.num_tokens, ignore_eos=True)


LOADS = [
    Load("edit", 1, 256),
    Load("again", 1, 256),
    Load("new", 1, 128),
    Load("wrong", 1, 256),
    Load("sampled", 1, 128),
    Load("wrong", 4, 96),
    Load("wrong", 16, 32),
    Load("sampled", 16, 32),
]


def measure(llm: LLM, load: Load, number: int) -> tuple[float, int, int, list[list[int]]]:
    """Tokens per second, steps, drafts, and the tokens."""
    prompts = [{"prompt_token_ids": prompt} for prompt in load.prompts(number)]
    for _ in range(1 + (load.kind == "again")):
        before, began = llm.get_metrics(), time.perf_counter()
        outputs = llm.generate(prompts, load.params, use_tqdm=False)
        seconds = time.perf_counter() - began
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    after = llm.get_metrics()
    steps, drafts = (int(after[name] - before[name]) for name in ("step", "draft_tokens"))
    return sum(map(len, tokens)) / seconds, steps, drafts, tokens


def measure_all(model: str, method: str, draft_model: str, kinds: Sequence[str], rounds: int) -> dict[str, float]:
    results = {}
    with (
        LLM(model, max_model_len=2048, speculative="off") as off,
        LLM(model, max_model_len=2048, speculative=method, draft_model=draft_model) as on,
    ):
        for load in LOADS:
            if kinds and load.kind not in kinds:
                continue
            ratios, speeds, num_drafts = [], [], []
            for number in range(rounds + 1):  # the first one warms up
                (before, plain_steps, _, expected), (after, steps, drafts, found) = (
                    measure(llm, load, number) for llm in (off, on)
                )
                assert found == expected, load.name
                ratios.append(after / before)
                speeds.append((before, after))
                num_drafts.append(drafts)
            results[load.name] = round(statistics.median(ratios[1:]), 3)
            pairs = " ".join(f"{before:.1f}:{after:.1f}" for before, after in speeds[1:])
            print(
                f"{load.name:34} {results[load.name]:.2f} times; steps {plain_steps}:{steps}; "
                f"drafts {' '.join(map(str, num_drafts[1:]))}; tok/s {pairs}",
                flush=True,
            )
    return results


def json_steps(method: str) -> float:
    """How many times fewer steps a JSON object takes."""
    params = SamplingParams(temperature=0.0, max_tokens=900, structured_outputs=StructuredOutputsParams(json=SCHEMA))
    steps, texts = [], []
    for each in ("off", method):
        with LLM(max_model_len=1024, speculative=each) as llm:
            before = llm.get_metrics()["step"]
            [answer] = llm.generate(["An order as JSON:"], params, use_tqdm=False)[0].outputs
            steps.append(llm.get_metrics()["step"] - before)
            texts.append((answer.text, list(answer.token_ids)))
    assert texts[0] == texts[1]
    text, tokens = texts[0]
    print(f"{len(json.loads(text))} fields, {len(tokens)} tokens: {steps[0]} steps, {steps[1]} with drafts")
    return steps[0] / steps[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--draft-model", default="", help="a folder, with --method draft; MODEL itself: all are right")
    parser.add_argument("--kinds", default="", help="of loads, separated by commas; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    kinds = options.kinds.split(",") if options.kinds else []
    results = {}
    if kinds != ["json"]:
        results = measure_all(options.model, options.method, options.draft_model, kinds, options.rounds)
    if not kinds or "json" in kinds:
        results["json"] = round(json_steps(options.method), 2)
    print(json.dumps({"model": options.model, "method": options.method, "times": results}))


if __name__ == "__main__":
    main()
