"""Measure decode steps and a prompt of a mixture of experts against the limits of this machine.

    nice -n -15 python scripts/models/bench_experts.py [--threads 2] [--batches 1,16] [--form fp8-blocks] [SIZE=N ...]

Regime: a made Qwen3-MoE with random weights (made_experts.py; 8 of 64 experts, hidden size 2048, experts of
1024, 4 layers; `layers=2 hidden=1024` changes it) in a temporary folder, in bfloat16, quantized to int8 while it is
loaded, or stored in e4m3 with a scale per block of 128 x 128 or per output (`--form`); the kernels' recorded steps,
without sampler, engine and HTTP. A step reads the attention, the routers and the output head once, and each expert that
a row has chosen: at batch 1 exactly 8 of 64, at batch n on average 64 * (1 - (7/8)^n). Its limit is these bytes over
the machine's read bandwidth, measured by the same threads before. Every step has other tokens, so other experts. A
prompt's limit is its operations over the peak of products in registers; one row has logits. Figures are medians; the
last line is JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from made_experts import FP8_CONFIGS, Shape, shape_of, write_folder

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.batch.input_batch import InputBatch
from paged_serve.workers.distributed.huge_pages import allocate
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.decode_step import DecodeStep
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model

CONTEXT, PROMPT, BLOCK_SIZE = 128, 512, 16
READ_BYTES, PIECE_BYTES = 256 << 20, 16 << 20


def read_bandwidth(pool: cpu.Pool) -> float:
    """Bytes per second, in the best of many short pieces of memory that no cache holds."""
    memory, best = allocate((READ_BYTES,), torch.uint8).fill_(1), 0.0
    for start in 7 * [*range(0, READ_BYTES, PIECE_BYTES)]:
        began = time.perf_counter()
        pool.library.read_memory(pool.handle, memory.data_ptr() + start, PIECE_BYTES)
        best = max(best, PIECE_BYTES / (time.perf_counter() - began))
    return best


def bytes_of_step(model: Model, shape: Shape, batch: int, form: str) -> float:
    """The bytes of the weights that a step of `batch` rows reads; with fp8, routers and the head are bfloat16."""
    floats = shape.vocab * shape.hidden + shape.layers * shape.experts * shape.hidden if form in FP8_CONFIGS else 0
    coded = shape.expert_weights + shape.other_weights - floats
    per_weight = (model.weights_bytes - 2 * floats) / coded
    return 2 * floats + per_weight * (shape.weights_of_step(batch) - floats)


def steps_s(model: Model, step: DecodeStep, batch: int, count: int) -> list[float]:
    """The times of `count` steps of `batch` rows in the middle of their contexts."""
    cache = KVCache.allocate(model.geometry, batch * CONTEXT // BLOCK_SIZE, BLOCK_SIZE)
    blocks = torch.arange(batch * CONTEXT // BLOCK_SIZE, dtype=torch.int32).view(batch, -1)
    tokens, rows = torch.zeros(batch, dtype=torch.int64), torch.arange(batch)
    inputs = InputBatch(
        token_ids=tokens,
        positions=torch.full((batch,), CONTEXT - 1),
        row_starts=torch.arange(batch + 1, dtype=torch.int32),
        kv_lens=torch.full((batch,), CONTEXT, dtype=torch.int32),
        longest=CONTEXT,
        block_tables=[blocks],
        slots=[(rows + 1) * CONTEXT - 1],
        logit_tokens=rows,
        num_decode_rows=batch,
    )
    generator, times = torch.Generator().manual_seed(1), []
    for _ in range(count + 3):
        tokens.copy_(torch.randint(model.geometry.vocab_size, (batch,), generator=generator))
        began = time.perf_counter()
        step(batch, lambda: inputs, lambda given: model.logits(model.forward(given, cache)))
        times.append(time.perf_counter() - began)
    return times[3:]  # the first steps allocate and record


def prompt_s(model: Model, count: int) -> list[float]:
    """The times of prompts of PROMPT tokens."""
    cache = KVCache.allocate(model.geometry, PROMPT // BLOCK_SIZE, BLOCK_SIZE)
    generator, times = torch.Generator().manual_seed(2), []
    for _ in range(count + 1):
        inputs = InputBatch(
            token_ids=torch.randint(model.geometry.vocab_size, (PROMPT,), generator=generator),
            positions=torch.arange(PROMPT),
            row_starts=torch.tensor([0, PROMPT], dtype=torch.int32),
            kv_lens=torch.tensor([PROMPT], dtype=torch.int32),
            longest=PROMPT,
            block_tables=[torch.arange(PROMPT // BLOCK_SIZE, dtype=torch.int32).view(1, -1)],
            slots=[torch.arange(PROMPT)],
            logit_tokens=torch.tensor([PROMPT - 1]),
            num_decode_rows=0,
        )
        began = time.perf_counter()
        model.logits(model.forward(inputs, cache)[inputs.logit_tokens])
        times.append(time.perf_counter() - began)
    return times[1:]


def peak(pool: cpu.Pool, number_format: str) -> float:
    """Operations per second, in the best of many short runs."""
    best = 0.0
    for _ in range(30):
        began = time.perf_counter()
        done = pool.library.peak_operations(pool.handle, number_format, 100_000)
        best = max(best, done / (time.perf_counter() - began))
    return best


def show_steps(
    model: Model, shape: Shape, pool: cpu.Pool, batches: list[int], count: int, form: str
) -> list[dict[str, float]]:
    step, figures = model.backend.decode_step(model.weights_bytes), []
    for batch in batches:
        bandwidth = read_bandwidth(pool)
        times = steps_s(model, step, batch, count)
        floor_s, median_s = bytes_of_step(model, shape, batch, form) / bandwidth, statistics.median(times)
        figures.append({"batch": batch, "tok/s": batch / median_s, "limit": batch / floor_s, "GB/s": bandwidth / 1e9})
        print(
            f"batch {batch:3}: {batch / median_s:7.1f} tok/s, {floor_s / median_s:.2f} of the limit of "
            f"{batch / floor_s:.1f} (fastest step {floor_s / min(times):.2f}); reading {bandwidth / 1e9:.1f} GB/s"
        )
    return figures


def show_prompt(model: Model, shape: Shape, pool: cpu.Pool, form: str) -> dict[str, float]:
    most = peak(pool, "int8" if form == "int8" else "bf16")
    per_token = 2 * (
        shape.expert_weights * shape.top_k / shape.experts + shape.other_weights - shape.vocab * shape.hidden
    )
    median_s = statistics.median(prompt_s(model, 5))
    rate = per_token * PROMPT / median_s
    print(f"prompt {PROMPT}: {PROMPT / median_s:7.1f} tok/s, {rate / most:.2f} of the peak of {most / 1e9:.0f} Gop/s")
    return {"prompt": PROMPT, "tok/s": PROMPT / median_s, "limit": most / per_token}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="*", help="changes of the shape, such as layers=2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--form", default="bf16", choices=["bf16", "int8", *FP8_CONFIGS])
    parser.add_argument("--dir", help="where the model is written; default: the system's temporary folder")
    options = parser.parse_intermixed_args()
    library, shape = cpu.best_library(), shape_of(options.shape)
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    pool = cpu.Pool(library, list(range(options.threads)))
    with tempfile.TemporaryDirectory(prefix="bench-experts-", dir=options.dir) as folder:
        write_folder(Path(folder), shape, options.form if options.form in FP8_CONFIGS else "")
        config = ModelConfig(device="cpu", quantization="int8" if options.form == "int8" else "auto")
        model = load_model(folder, config, TensorParallelGroup(), lambda done, total: None, pool)
    figures = [
        *show_steps(model, shape, pool, options.batches, options.steps, options.form),
        show_prompt(model, shape, pool, options.form),
    ]
    print(json.dumps({"isa": library.isa, **vars(options), "weights": model.weights_bytes, "figures": figures}))


if __name__ == "__main__":
    main()
