"""Check the built-in demo model on a device: parity with transformers, equal results in every batch, and recovery.

    python scripts/demo_model/check_device_model.py parity [--device cuda]
    python scripts/demo_model/check_device_model.py determinism [--device cuda] [--quantization T] [--kv-cache-dtype T]
    python scripts/demo_model/check_device_model.py recovery [--device cuda] [--quantization T] [--kv-cache-dtype T]

parity       compares logprobs of prompts in bfloat16, ours and transformers', with transformers' in float32. Our mean
             error may exceed theirs by at most a quarter.
determinism  runs sampled and greedy requests alone, together, together in small chunks, and again: every token and
             every logprob must be the same each time.
recovery     runs the same requests together, undisturbed and while a worker, the engine core, and both of them are
             killed. Again nothing may differ.

The last line is JSON; the exit status is 1 if the check fails.
"""

import argparse
import json
import sys
from contextlib import suppress
from typing import Any

import psutil
import torch

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder

TEXTS = [
    "The capital of France is Paris. The capital of Japan is",
    "Water boils at one hundred degrees, and it freezes at",
    'A JSON object with a name and an age: {"name": "Ada", "age":',
    "Once upon a time there was a small town by the sea, and in it lived",
]
SLACK = 1.25
CHUNK_TOKENS = 16
WORKER, CORE = "worker", "engine-core"  # how the names of processes begin
Contents = list[tuple[list[int], list[Any]]]  # token ids and logprobs of each output
KILLED_AFTER = {3: (WORKER,), 9: (CORE,), 15: (WORKER, CORE)}  # by the number of requests that have ended


def parity(device: str) -> list[dict[str, Any]]:
    truth, theirs = (transformers_logprobs(dtype) for dtype in (torch.float32, torch.bfloat16))
    ours = our_logprobs(device)
    rows = []
    for name, found in (("ours", ours), ("transformers", theirs)):
        off = (found - truth).abs()
        rows.append({"in bfloat16": name, "mean error of a logprob": float(off.mean()), "largest": float(off.max())})
    return rows


def our_logprobs(device: str) -> torch.Tensor:
    """Our logprobs of every prompt token except the first of each text."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with LLM(device=device, dtype="bfloat16") as llm:
        outputs = llm.generate(TEXTS, params, use_tqdm=False)
    found = []
    for output in outputs:
        of_tokens = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        found += [by_token[token].logprob for token, by_token in of_tokens]
    return torch.tensor(found, dtype=torch.float64)


def transformers_logprobs(dtype: torch.dtype) -> torch.Tensor:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(demo_model_folder())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    found = []
    for text in TEXTS:
        token_ids = torch.tensor([tokenizer.encode(text)])
        with torch.inference_mode():
            logits = model(token_ids).logits[0, :-1].double()
        found.append(logits.log_softmax(-1).gather(1, token_ids[0, 1:, None])[:, 0])
    return torch.cat(found)


def requests() -> tuple[list[str], list[SamplingParams]]:
    prompts = [TEXTS[i % len(TEXTS)] * (1 + i % 3) for i in range(24)]
    kinds: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1.0}, {"top_p": 0.8, "top_k": 40}]
    return prompts, [
        SamplingParams(max_tokens=12 + i, seed=i, logprobs=2, ignore_eos=True, **kinds[i % 3])
        for i in range(len(prompts))
    ]


def determinism(**options: str) -> list[dict[str, Any]]:
    prompts, params = requests()
    with LLM(**options) as llm:
        alone = [contents(llm.generate([p], s, use_tqdm=False))[0] for p, s in zip(prompts, params, strict=True)]
        llm.reset_prefix_cache()
        ways = {"together": contents(llm.generate(prompts, params, use_tqdm=False))}
        ways["again, from the prefix cache"] = contents(llm.generate(prompts, params, use_tqdm=False))
    with LLM(max_num_batched_tokens=CHUNK_TOKENS, max_num_seqs=8, **options) as llm:
        ways[f"in chunks of {CHUNK_TOKENS}"] = contents(llm.generate(prompts, params, use_tqdm=False))
    return [compared(name, found, alone) for name, found in ways.items()]


def compared(name: str, found: Contents, expected: Contents) -> dict[str, Any]:
    return {
        "requests": name,
        "of": len(expected),
        "another token": sum(ids != other for (ids, _), (other, _) in zip(found, expected, strict=True)),
        "another byte": sum(one != other for one, other in zip(found, expected, strict=True)),
    }


def recovery(**options: str) -> list[dict[str, Any]]:
    prompts, params = requests()
    with LLM(**options) as llm:
        undisturbed = contents(llm.generate(prompts, params, use_tqdm=False))
        llm.reset_prefix_cache()
        bar = KillingBar()
        found = contents(llm.generate(prompts, params, use_tqdm=lambda **_: bar))
    for role in (WORKER, CORE):
        if not any(name.startswith(role) for name in bar.killed):
            raise RuntimeError(f"no {role} was killed, so nothing was shown")
    return [compared(f"together, {', '.join(bar.killed)} killed", found, undisturbed)]


class KillingBar:
    """A progress bar that kills processes of its own process, in place of showing how many requests have ended."""

    def __init__(self) -> None:
        self.killed: list[str] = []
        self._ended = 0

    def update(self, count: int) -> None:
        self._ended += count
        for role in KILLED_AFTER.get(self._ended, ()):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if process.name().startswith(role):
                        self.killed.append(process.name())
                        process.kill()

    def close(self) -> None: ...


def contents(outputs: list[Any]) -> Contents:
    """The token ids and all logprobs of each output."""
    results = []
    for output in outputs:
        (completion,) = output.outputs
        logprobs = [
            sorted((token, found.logprob, found.rank) for token, found in by_token.items())
            for by_token in completion.logprobs
        ]
        results.append((list(completion.token_ids), logprobs))
    return results


CHECKS = {"determinism": determinism, "recovery": recovery}


def holds(what: str, rows: list[dict[str, Any]]) -> bool:
    if what == "parity":
        ours, theirs = (row["mean error of a logprob"] for row in rows)
        return bool(ours <= theirs * SLACK)
    return not any(row["another byte"] for row in rows)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["parity", *CHECKS])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--quantization", default="auto", help="for determinism and recovery")
    parser.add_argument("--kv-cache-dtype", default="auto", help="likewise")
    options = vars(parser.parse_args(arguments))
    what = options.pop("what")
    rows = parity(options["device"]) if what == "parity" else CHECKS[what](**options)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    print(json.dumps(rows))
    return int(not holds(what, rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
