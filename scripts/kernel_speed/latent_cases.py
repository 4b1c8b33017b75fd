"""The cases of bench_kernels.py for latent attention, with the sizes of DeepSeek-V2-Lite (16 heads) and of V3 (128)."""

from collections.abc import Iterator
from itertools import cycle

import torch
from kernel_cases import Case, cold_copies
from torch import Tensor

from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.geometry.layer_options import AttentionOptions, Latent
from paged_serve.workers.kernels.cpu.latent.latent_attention import head_gemm, latent_attention
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.kernels.cpu.packing import pack_float
from paged_serve.workers.kv.cache_view import CacheView
from paged_serve.workers.kv.kv_cache import KVCache

SIZES = Latent(query_rank=0, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
BLOCK_SIZE = 16
HEADS = (16, 128)
DECODES = ((1, 512), (32, 512), (1, 4096), (32, 4096))  # rows, context
PREFILLS = ((1, 512), (1, 2048))
ROWS = (1, 32, 512)
NO_INTEGERS = torch.empty(0, dtype=torch.int64)


def latent_cases(pool: Pool, cache: Tensor) -> Iterator[Case]:
    """`cache` is the memory of kernel_cases.make_cache()."""
    rows = cache.view(-1)[: cache.numel() // (BLOCK_SIZE * SIZES.cached_dim) * BLOCK_SIZE * SIZES.cached_dim]
    latents = rows.view(-1, 1, BLOCK_SIZE, SIZES.cached_dim)
    for kind, shapes in (("decode", DECODES), ("prefill", PREFILLS)):
        for heads in HEADS:
            for number, context in shapes:
                yield attention_case(pool, latents, kind, heads, number, context)
    for outputs, inputs in ((SIZES.kv_rank, SIZES.nope_dim), (SIZES.value_dim, SIZES.kv_rank)):
        for number in ROWS:
            yield product_case(pool, number, outputs, inputs)


def attention_case(pool: Pool, latents: Tensor, kind: str, heads: int, rows: int, context: int) -> Case:
    """The last token of each row's `context`, in a prefill all tokens."""
    tokens, num_blocks = context if kind == "prefill" else 1, len(latents)
    blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).int()
    turns = num_blocks // (rows * context // BLOCK_SIZE)
    tables = blocks[: turns * rows * context // BLOCK_SIZE].view(turns, rows, -1)
    starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32)
    lens = torch.full((rows,), context, dtype=torch.int32)
    held = KVCache([latents], [latents], BLOCK_SIZE)
    views = cycle(CacheView(held, table, starts, lens, NO_INTEGERS, NO_INTEGERS, 0, 0) for table in tables)
    query = torch.randn(rows * tokens, heads, SIZES.cached_dim).bfloat16()
    out = torch.empty(rows * tokens, heads, SIZES.kv_rank, dtype=torch.bfloat16)
    options, seen = AttentionOptions(0.05), rows * (tokens * (context - tokens) + tokens * (tokens + 1) // 2)
    return Case(
        f"latent {kind} {heads} heads",
        f"{rows} x {context}",
        lambda: latent_attention(pool, query, next(views), 0, options, out),
        rows * context * latents[0, 0, 0].nbytes,
        2 * (SIZES.cached_dim + SIZES.kv_rank) * heads * seen,
        "bf16",
    )


def product_case(pool: Pool, rows: int, outputs: int, inputs: int) -> Case:
    heads = HEADS[0]
    weights = cold_copies(pack_float(stacked_experts("", [torch.randn(outputs, inputs).bfloat16()] * heads)))
    turns, x = cycle(weights), torch.randn(rows, heads, inputs).bfloat16()
    out = torch.empty(rows, heads, outputs, dtype=torch.bfloat16)
    return Case(
        f"products of {heads} heads",
        f"{rows} x {inputs} x {outputs}",
        lambda: head_gemm(pool, x, next(turns), out),
        weights[0].nbytes,
        2 * rows * heads * inputs * outputs,
        "bf16",
    )
