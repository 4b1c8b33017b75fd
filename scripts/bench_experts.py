"""Measure decode steps of a mixture of experts against the read bandwidth of what a step must read.

    nice -n -15 python scripts/bench_experts.py [--layers 10] [--threads 2] [--batches 1,16] [--quantization int8]

Regime: a made Qwen3-MoE with random weights (8 of 64 experts, hidden size 1024, 100 M parameters a layer) in a
temporary folder; the kernels' recorded steps, without sampler, engine and HTTP. A step reads the attention, the routers
and the output head once, and each expert that a row has chosen: at batch 1 exactly 8 of 64, at batch n on average
64 * (1 - (7/8)^n). The limit is these bytes over the machine's read bandwidth, measured by the same threads. Every step
has other tokens, so other experts. Figures are medians; the last line is JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.batch.input_batch import InputBatch
from paged_serve.workers.distributed.huge_pages import allocate
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.decode_step import DecodeStep
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model

HIDDEN, WIDTH, EXPERTS, TOP_K, VOCAB = 1024, 512, 64, 8, 32000
HEADS, KV_HEADS, HEAD_DIM = 16, 8, 64
CONTEXT, BLOCK_SIZE = 128, 16
READ_BYTES, PIECE_BYTES = 256 << 20, 16 << 20


def write_model(folder: Path, layers: int) -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).bfloat16()

    tensors = {"model.embed_tokens.weight": random(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN).bfloat16()}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, size in (("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN)):
            tensors[f"{at}.{name}.weight"] = torch.ones(size).bfloat16()
        for name, outputs in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = random(outputs * HEAD_DIM, HIDDEN)
        tensors[f"{at}.self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD_DIM)
        for name in ("q_norm", "k_norm"):
            tensors[f"{at}.self_attn.{name}.weight"] = torch.ones(HEAD_DIM).bfloat16()
        tensors[f"{at}.mlp.gate.weight"] = 3 * random(EXPERTS, HIDDEN)
        tensors[f"{at}.mlp.experts.gate_up_proj"] = random(EXPERTS, 2 * WIDTH, HIDDEN)
        tensors[f"{at}.mlp.experts.down_proj"] = random(EXPERTS, HIDDEN, WIDTH)
    save_file(tensors, folder / "model.safetensors")


def read_bandwidth(pool: cpu.Pool) -> float:
    """Bytes per second, in the best of many short pieces of memory that no cache holds."""
    memory, best = allocate((READ_BYTES,), torch.uint8).fill_(1), 0.0
    for start in 7 * [*range(0, READ_BYTES, PIECE_BYTES)]:
        began = time.perf_counter()
        pool.library.read_memory(pool.handle, memory.data_ptr() + start, PIECE_BYTES)
        best = max(best, PIECE_BYTES / (time.perf_counter() - began))
    return best


def bytes_of_step(model: Model, batch: int, layers: int) -> float:
    """The weights that a step of `batch` rows reads; of experts the average number."""
    experts = layers * 3 * HIDDEN * WIDTH * EXPERTS
    per_weight = model.weights_bytes / (experts + VOCAB * HIDDEN)  # attention is a few percent of either
    rest = model.weights_bytes - experts * per_weight
    return rest + experts * per_weight * (1 - (1 - TOP_K / EXPERTS) ** batch)


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
        tokens.copy_(torch.randint(VOCAB, (batch,), generator=generator))
        began = time.perf_counter()
        step(batch, lambda: inputs, lambda given: model.logits(model.forward(given, cache)))
        times.append(time.perf_counter() - began)
    return times[3:]  # the first steps allocate and record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--quantization", default="auto", choices=["auto", "int8", "int4"])
    parser.add_argument("--dir", help="where the model is written; default: the system's temporary folder")
    options = parser.parse_args()
    library = cpu.best_library()
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    pool = cpu.Pool(library, list(range(options.threads)))
    with tempfile.TemporaryDirectory(prefix="bench-experts-", dir=options.dir) as folder:
        write_model(Path(folder), options.layers)
        config = ModelConfig(device="cpu", quantization=options.quantization)
        model = load_model(folder, config, TensorParallelGroup(), lambda done, total: None, pool)
    step, figures = model.backend.decode_step(), []
    for batch in options.batches:
        bandwidth = read_bandwidth(pool)
        times = steps_s(model, step, batch, options.steps)
        floor_s, median_s = bytes_of_step(model, batch, options.layers) / bandwidth, statistics.median(times)
        figures.append({"batch": batch, "tok/s": batch / median_s, "limit": batch / floor_s, "GB/s": bandwidth / 1e9})
        print(
            f"batch {batch:3}: {batch / median_s:7.1f} tok/s, {floor_s / median_s:.2f} of the limit of "
            f"{batch / floor_s:.1f} (fastest step {floor_s / min(times):.2f}); reading {bandwidth / 1e9:.1f} GB/s"
        )
    print(json.dumps({"isa": library.isa, **vars(options), "weights": model.weights_bytes, "figures": figures}))


if __name__ == "__main__":
    main()
