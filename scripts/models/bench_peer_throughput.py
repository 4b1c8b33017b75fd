"""Compare the throughput with transformers' continuous batching on the same device, one system after the other.

    python scripts/models/bench_peer_throughput.py [--device cuda]

A Llama with 1.5 billion random weights (the shape of Llama 3.2 1B with an untied head) is written to a temporary folder
that both systems read. Both get the same prompts of 64 to 512 random tokens without shared prefixes and generate 128
tokens each, greedily: a first run warms up, a second run with other prompts is measured. Ours is the whole server
behind LLM, theirs is `generate_batch` with its own choice of attention and batch. After each system, the figures so far
are printed as a line of JSON, so that an interrupted run keeps its results. With --device cpu, a tiny model is used to
check that the program works.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder

Prompts = list[list[int]]
Generate = Callable[[Prompts], int]  # returns the number of tokens generated


@dataclass(frozen=True)
class Load:
    """The load that both systems get."""

    vocab_size: int
    requests: int
    shortest: int  # tokens of a prompt
    longest: int
    max_tokens: int

    def prompts(self, seed: int) -> Prompts:
        random = np.random.default_rng(seed)
        lengths = random.integers(self.shortest, self.longest + 1, self.requests)
        return [random.integers(3, self.vocab_size, length).tolist() for length in lengths.tolist()]


LARGE = Load(vocab_size=128256, requests=128, shortest=64, longest=512, max_tokens=128)
TINY = Load(vocab_size=1024, requests=4, shortest=5, longest=20, max_tokens=6)
SHAPES: dict[Load, dict[str, Any]] = {
    LARGE: {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 2048},
    TINY: {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
}


def write_model(folder: Path, load: Load, device: str) -> None:
    config = LlamaConfig(vocab_size=load.vocab_size, tie_word_embeddings=False, dtype="bfloat16", **SHAPES[load])
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def ours(folder: Path, load: Load, device: str) -> dict[str, Any]:
    params = SamplingParams(temperature=0, max_tokens=load.max_tokens, ignore_eos=True, detokenize=False)
    tokenizer = str(demo_model_folder())  # required, but not used: prompts are token ids
    with LLM(
        str(folder),
        tokenizer=tokenizer,
        device=device,
        max_num_seqs=load.requests,
        enable_prefix_caching=False,
        speculative="off",
    ) as llm:

        def generate(prompts: Prompts) -> int:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return sum(len(output.outputs[0].token_ids) for output in outputs)

        return measured("paged-serve", load, generate)


def theirs(folder: Path, load: Load, device: str) -> dict[str, Any]:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    greedy = GenerationConfig(
        max_new_tokens=load.max_tokens, do_sample=False, eos_token_id=None, bos_token_id=None, pad_token_id=0
    )
    # On a CPU, its cache would otherwise take all memory.
    sizes = {} if device == "cuda" else {"num_blocks": 16, "max_batch_tokens": 64}
    settings = ContinuousBatchingConfig(allow_block_sharing=False, **sizes)

    def generate(prompts: Prompts) -> int:
        results = model.generate_batch(
            prompts, generation_config=greedy, continuous_batching_config=settings, persistent_manager=True
        )
        if failed := [result.error for result in results.values() if result.error]:
            raise RuntimeError(f"transformers failed: {failed[0]}")
        return sum(len(result.generated_tokens) for result in results.values())

    try:
        row = measured(f"transformers {transformers.__version__}", load, generate)
        return row | {"attention": model.config._attn_implementation}
    finally:
        model.destroy_cached_continuous_batching_manager()


def measured(system: str, load: Load, generate: Generate) -> dict[str, Any]:
    seconds = []
    for seed in range(2):
        prompts = load.prompts(seed)
        began = time.perf_counter()
        tokens = generate(prompts)
        seconds.append(time.perf_counter() - began)
        if tokens != load.requests * load.max_tokens:
            raise RuntimeError(f"{system} generated {tokens} tokens, not {load.requests * load.max_tokens}")
    return {"system": system, "requests": load.requests, "tok/s": tokens / seconds[1], "first run, s": seconds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    device = parser.parse_args().device
    load = LARGE if device == "cuda" else TINY
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), load, device)
        if device == "cuda":
            torch.cuda.empty_cache()  # our workers are other processes
        for system in (ours, theirs):
            rows.append(system(Path(name), load, device))
            print(json.dumps(rows), flush=True)
    rows.append({"system": "paged-serve / transformers", "tok/s": rows[0]["tok/s"] / rows[1]["tok/s"]})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
