"""Measure the speed of one model without HTTP: prefill by prompt length, decode by batch size, a load of 64 requests.

    python scripts/models/bench_model.py MODEL [--prompts 512,8192] [--batches 1,4,16] [--no-load] [--rounds 3]
        [--json F] [NAME=VALUE ...]

Decode is the engine core's own time from the first to the last of 33 tokens, the median of the rows. The prompts are
cached before, so that the rows begin in the same step, but for the first ones to arrive. Contexts have 128 to 161
tokens. Nothing is cached for the prefill and for the load of 64 requests, which is that of `paged-serve bench
throughput`. Outputs are tokens without text. Figures are medians over the rounds. There are no drafts unless asked for
(speculative=auto): each round has the same prompts, whose answers would be the drafts.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.bench.load.load import Lengths, random_load
from paged_serve.protocol.messages.engine_core import RequestTimes

PREFILL, CONTEXT, DECODED = 512, 128, 32
MAX_MODEL_LEN = 2048  # unless a prompt is longer


def seconds(llm: LLM, prompts: Sequence[object], lengths: Sequence[int]) -> float:
    llm.reset_prefix_cache()
    began = time.perf_counter()
    generate(llm, prompts, lengths)
    return time.perf_counter() - began


def generate(llm: LLM, prompts: Sequence[object], lengths: Sequence[int]) -> list[RequestTimes | None]:
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False) for length in lengths
    ]
    return [output.metrics for output in llm.generate(list(prompts), params, use_tqdm=False)]


def prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    return [300 + (seed * 977 + j * 13) % (vocab_size - 1000) for j in range(length)]


def decode_rate(llm: LLM, batch: int, vocab_size: int) -> float:
    prompts = [prompt(k, CONTEXT, vocab_size) for k in range(batch)]
    generate(llm, prompts, [1] * batch)
    return (
        batch * DECODED / statistics.median(times.decode_s for times in generate(llm, prompts, [1 + DECODED] * batch))
    )


def measure(llm: LLM, prompts: Sequence[int], batches: Sequence[int], number: int, with_load: bool) -> dict[str, float]:
    """One round: tokens per second; for the load, output tokens per second."""
    vocab_size = llm.limits.vocab_size
    found = {
        f"prefill {length}": length / seconds(llm, [prompt(number, length, vocab_size)], [1]) for length in prompts
    }
    for batch in batches:
        found[f"decode {batch}"] = decode_rate(llm, batch, vocab_size)
    if not with_load:
        return found
    requests = random_load(64, Lengths(32, 512), Lengths(16, 128), seed=0, vocab_size=vocab_size)
    lengths = [request.max_tokens for request in requests]
    found["load 64"] = sum(lengths) / seconds(llm, [request.prompt for request in requests], lengths)
    return found


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def options_of_llm(texts: Sequence[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    for text in texts:
        name, _, value = text.partition("=")
        options[name] = int(value) if value.isdigit() else value
    return options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("options", nargs="*", help="arguments of LLM, such as threads=1 or quantization=int8")
    parser.add_argument("--prompts", type=numbers, default=[PREFILL], help="their lengths in tokens")
    parser.add_argument("--batches", type=numbers, default=[1, 4, 16, 32])
    parser.add_argument("--no-load", action="store_true", help="skip the load of 64 requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_intermixed_args()
    max_model_len = max(MAX_MODEL_LEN, 1 + max(arguments.prompts))
    settings = {"max_model_len": max_model_len, "speculative": "off"} | options_of_llm(arguments.options)
    with LLM(arguments.model, **settings) as llm:
        measure(llm, [PREFILL], arguments.batches[:1], 99, with_load=False)
        cases = arguments.prompts, arguments.batches
        rounds = [measure(llm, *cases, number, not arguments.no_load) for number in range(arguments.rounds)]
    for name in rounds[0]:
        values = sorted(one[name] for one in rounds)
        print(f"{name:12} {statistics.median(values):8.1f} tok/s   ({values[0]:.1f} to {values[-1]:.1f})")
    if arguments.json:
        arguments.json.write_text(json.dumps({"model": arguments.model, "settings": settings, "rounds": rounds}))


if __name__ == "__main__":
    main()
