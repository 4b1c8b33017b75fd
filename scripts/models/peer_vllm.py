"""One round of vLLM on CPU, in its own environment: prints a line of JSON with tokens per second.

bench_experts_peers.py says how to make the environment.

The same requests as in bench_model.py: a prompt of 512 tokens, and the time of 33 tokens minus that of one.
"""

import argparse
import json
import time
from collections.abc import Sequence

PREFILL, CONTEXT, DECODED = 512, 128, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="of the model")
    parser.add_argument("batches", help="such as 1,16")
    arguments = parser.parse_args()
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]  # only in its own environment

    batches = [int(batch) for batch in arguments.batches.split(",")]
    limits = {"max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    llm = LLM(
        model=arguments.folder,
        dtype="bfloat16",
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **limits,
    )

    def seconds(prompts: Sequence[list[int]], length: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return time.perf_counter() - began

    def prompt(seed: int, length: int) -> list[int]:
        return [300 + (seed * 977 + at * 13) % 30000 for at in range(length)]

    seconds([prompt(99, CONTEXT)], 8)
    found = {f"prefill {PREFILL}": PREFILL / min(seconds([prompt(each, PREFILL)], 1) for each in (1, 2))}
    for batch in batches:
        prompts = [prompt(each, CONTEXT) for each in range(batch)]
        first_s = seconds(prompts, 1)
        found[f"decode {batch}"] = batch * DECODED / (seconds(prompts, 1 + DECODED) - first_s)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
