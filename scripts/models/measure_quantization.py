"""Measure the fidelity and the savings of quantization, one row per setting.

    python scripts/models/measure_quantization.py [--model MODEL] [--prompts FILE] [--tokens 48]

The float model continues each prompt greedily. Every setting then scores the same tokens: the share of positions with
the same most likely token, and the decrease of the mean logprob. The other figures come from the worker: bytes of
weights, seconds to load them, and relative error of the quantized matrices.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paged_serve import LLM, SamplingParams

FACTS = Path(__file__).parents[1] / "demo_model" / "data" / "facts.txt"
NUM_PROMPTS = 64
SETTINGS: dict[str, dict[str, Any]] = {
    "float": {},
    "float, int8 head": {"quantize_lm_head": True},
    "float, int8 KV cache": {"kv_cache_dtype": "int8"},
    "int8": {"quantization": "int8"},
    "int8, float head": {"quantization": "int8", "quantize_lm_head": False},
    "fp8": {"quantization": "fp8", "cpu_isa": "torch"},  # implemented only in torch, as the reference
    "int4 g32": {"quantization": "int4"},
    "int4 g32, float head": {"quantization": "int4", "quantize_lm_head": False},
    "int4 g128": {"quantization": "int4", "quantization_group_size": 128},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--prompts", type=Path, help="one prompt per line; default: questions for the demo model")
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    prompts = list(read_prompts(options.prompts))
    texts: list[list[int]] = []
    for name, arguments in SETTINGS.items():
        with LLM(options.model, **arguments) as llm:
            if not texts:
                greedy = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
                outputs = llm.generate(prompts, greedy, use_tqdm=False)
                texts = [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs]
            row = {"setting": name, **score(llm, texts, options.tokens), **weights(llm)}
        print(json.dumps(row), flush=True)


def read_prompts(path: Path | None) -> Iterator[str]:
    if path is not None:
        yield from path.read_text().splitlines()
        return
    lines = FACTS.read_text().splitlines()
    for line in lines[:: max(1, len(lines) // NUM_PROMPTS)]:
        yield line.rpartition("|")[2].partition(";")[0].strip()


def score(llm: LLM, texts: list[list[int]], num_tokens: int) -> dict[str, float]:
    """Over the last `num_tokens` of each text: how often the token is the model's own choice, and the mean logprob."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    ranks, logprobs = [], []
    for text, output in zip(texts, llm.generate(texts, params, use_tqdm=False), strict=True):
        for token, entry in zip(text[-num_tokens:], output.prompt_logprobs[-num_tokens:], strict=True):
            ranks.append(entry[token].rank)
            logprobs.append(entry[token].logprob)
    same = sum(rank == 1 for rank in ranks) / len(ranks)
    return {"same token": round(same, 4), "mean logprob": round(sum(logprobs) / len(logprobs), 4)}


def weights(llm: LLM) -> dict[str, str]:
    facts = llm.get_facts()
    return {"weights": facts["weights"], "error": facts.get("quantization_error", "")}


if __name__ == "__main__":
    main()
