"""Tokens per second with drafts and without, in turn, and whether the tokens are the same.

    nice -n -15 .venv/bin/python scripts/bench_speculation.py MODEL --rounds 2

A model without training repeats itself when it is greedy, and never when it samples: the best and the worst for drafts.
"""

import argparse
import random
import time
from dataclasses import dataclass

from paged_serve import LLM, SamplingParams

PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Load:
    name: str
    num_rows: int
    params: SamplingParams


def loads() -> list[Load]:
    def params(max_tokens: int, temperature: float) -> SamplingParams:
        return SamplingParams(temperature=temperature, seed=1, max_tokens=max_tokens, ignore_eos=True)

    return [
        Load("1 row, greedy", 1, params(192, 0.0)),
        Load("1 row, sampled", 1, params(128, 1.0)),
        Load("4 rows, sampled", 4, params(96, 1.0)),
        Load("16 rows, sampled", 16, params(64, 1.0)),
        Load("16 rows, greedy", 16, params(64, 0.0)),
    ]


def measure(llm: LLM, load: Load) -> tuple[float, list[list[int]]]:
    """Tokens per second, and the tokens."""
    rng = random.Random(0)
    prompts = [
        {"prompt_token_ids": [rng.randrange(300, 30_000) for _ in range(PROMPT_TOKENS)]} for _ in range(load.num_rows)
    ]
    began = time.perf_counter()
    outputs = llm.generate(prompts, load.params, use_tqdm=False)
    seconds = time.perf_counter() - began
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return sum(map(len, tokens)) / seconds, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--method", default="ngram")
    parser.add_argument("--draft-model", default="", help="a folder, with --method draft; MODEL itself: all are right")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with (
        LLM(options.model, max_model_len=2048) as off,
        LLM(options.model, max_model_len=2048, speculative=options.method, draft_model=options.draft_model) as on,
    ):
        for _ in range(options.rounds):
            for load in loads():
                (before, expected), (after, found) = measure(off, load), measure(on, load)
                assert found == expected, load.name
                print(f"{load.name:18} {before:7.1f} {after:7.1f} tok/s, {after / before:.2f} times", flush=True)


if __name__ == "__main__":
    main()
