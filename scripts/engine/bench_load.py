"""Measure how fast a checkpoint is loaded: packed for the CPU kernels, or read from the packed file.

Each load runs in its own process, like the start of a worker; the checkpoint is in the page cache. Without --model,
random weights in the shape of a model with half a billion parameters are used. Rates are those of `load_model` alone,
without imports and KV cache. On a machine with other load, look at the rate by CPU time.

A virtual machine may return free memory to its host; the first access to a page then waits for the host, and this wait
counts as CPU time of the process. Therefore a process first touches as much memory as it will need, frees it and loads
at once; `first touch` is the rate of that access. A load without it takes longer by its bytes divided by that rate.

With three runs a form takes seven processes for a number of threads, so all forms with two numbers take 84. For a
first figure, `--forms bfloat16 --runs 1` takes three for a number of threads.

    python scripts/engine/bench_load.py --threads 1 2 --runs 3
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HIDDEN, FFN, LAYERS, VOCAB, HEAD_DIM, HEADS, KV_HEADS = 1024, 3072, 28, 32000, 128, 8, 4
GROUP = 128  # inputs per group of gptq and awq
HEADER = "| weights | threads | seconds | GB/s | GB/s of CPU time | MB beyond the weights | first touch, GB/s |"
FORMS: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "gptq": {},
    "awq": {},
}
WARM_TIMES = 2.5  # memory touched, in checkpoint sizes: float32 from bfloat16, and codes before packing


def write_model(folder: Path, form: str) -> None:
    """Write a Llama with random weights: 0.8 GB of bfloat16, or of gptq or awq codes."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).bfloat16()

    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator).int()

    def projection(name: str, outputs: int, inputs: int) -> dict[str, torch.Tensor]:
        if form not in ("gptq", "awq"):
            return {f"{name}.weight": weight(outputs, inputs)}
        groups, codes = inputs // GROUP, (inputs // 8, outputs) if form == "gptq" else (inputs, outputs // 8)
        zeros, scales = words(groups, outputs // 8), weight(groups, outputs).half()
        return {f"{name}.qweight": words(*codes), f"{name}.qzeros": zeros, f"{name}.scales": scales}

    tensors = {name: weight(VOCAB, HIDDEN) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors["model.norm.weight"] = weight(HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part, heads in {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}.items():
            tensors |= projection(f"{name}.self_attn.{part}_proj", heads * HEAD_DIM, HIDDEN)
        tensors |= projection(f"{name}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM)
        for part in ("gate", "up"):
            tensors |= projection(f"{name}.mlp.{part}_proj", FFN, HIDDEN)
        tensors |= projection(f"{name}.mlp.down_proj", HIDDEN, FFN)
        tensors |= {f"{name}.{norm}_layernorm.weight": weight(HIDDEN) for norm in ("input", "post_attention")}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(form)))


def config_of(form: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    quantization = {"quant_method": form, "bits": 4, "group_size": GROUP, "desc_act": False, "version": "gemm"}
    if form in ("gptq", "awq"):
        config["quantization_config"] = quantization
    return config


def first_touch(nbytes: int) -> float:
    """Touch and free memory; returns bytes per second."""
    from paged_serve.workers.distributed.huge_pages import allocate

    memory = allocate((nbytes,), torch.uint8)
    began = time.process_time()
    memory[::4096] = 1
    return nbytes / (time.process_time() - began)


def load_once(model: str, fields: dict[str, Any], threads: int) -> dict[str, float]:
    """Load in this process; returns the seconds, and the peak memory beyond the weights in bytes."""
    from paged_serve.protocol.messages.config import ModelConfig
    from paged_serve.workers.distributed.allocator import keep_freed_memory
    from paged_serve.workers.distributed.memory import peak_resident_bytes, resident_bytes
    from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
    from paged_serve.workers.kernels.cpu.library import Pool, best_library
    from paged_serve.workers.models.loading import load_model

    torch.set_num_threads(1)
    keep_freed_memory()
    library = best_library()
    assert library is not None, "the kernels are not built"
    pool = Pool(library, sorted(os.sched_getaffinity(0))[:threads])
    touched = first_touch(int(WARM_TIMES * sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))))
    before = resident_bytes()
    reset_peak()
    started, computed = time.perf_counter(), time.process_time()
    loaded = load_model(model, ModelConfig(device="cpu", **fields), TensorParallelGroup(), lambda *_: None, pool)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - computed
    beyond = peak_resident_bytes() - before - loaded.weights_bytes
    return {"seconds": seconds, "cpu": cpu_seconds, "beyond": beyond, "touched": touched}


def reset_peak() -> None:
    """Reset the peak of this process's resident bytes to the current value."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(model: str, fields: dict[str, Any], threads: int, runs: int) -> dict[str, float]:
    """The minimum of each figure over several processes."""
    found = []
    for _ in range(runs):
        command = [sys.executable, __file__, "--one", json.dumps([model, fields, threads])]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: min(run[name] for run in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the checkpoint; default: random weights")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--no-kept", action="store_true", help="do not measure --packed-weights-dir")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(load_once(*json.loads(arguments.one))))
        return
    print(f"minimum of {arguments.runs} runs; GB of the checkpoint per second\n\n{HEADER}\n|{'---|' * 7}")
    with tempfile.TemporaryDirectory() as name:
        for form in arguments.forms:
            folder = Path(arguments.model or f"{name}/{form if form in ('gptq', 'awq') else 'floats'}")
            if not folder.exists():
                write_model(folder, form)
            total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
            for threads in arguments.threads:
                report(form, threads, total, measure(str(folder), FORMS[form], threads, arguments.runs))
                if not arguments.no_kept:
                    report_kept(form, threads, total, folder, arguments.runs)


def report_kept(form: str, threads: int, total: int, folder: Path, runs: int) -> None:
    with tempfile.TemporaryDirectory() as kept:
        fields = {**FORMS[form], "packed_weights_dir": kept}
        report(f"{form}, written to the packed file", threads, total, measure(str(folder), fields, threads, 1))
        (path,) = Path(kept).iterdir()
        size = path.stat().st_size
        report(f"{form}, read from the packed file", threads, size, measure(str(folder), fields, threads, runs))


def report(what: str, threads: int, nbytes: int, run: dict[str, float]) -> None:
    rate, per_cpu = (nbytes / run[name] / 1e9 for name in ("seconds", "cpu"))
    beyond = run["beyond"] / 1e6
    touched = run["touched"] / 1e9
    figures = f"{run['seconds']:.2f} | {rate:.2f} | {per_cpu:.2f} | {beyond:.0f} | {touched:.2f}"
    print(f"| {what} ({nbytes / 1e9:.2f} GB) | {threads} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
