"""The cases of bench_kernels.py for latent attention, with the sizes of DeepSeek-V2-Lite (16 heads) and of V3 (128).

Those of sparse attention have the sizes of DeepSeek-V3.2, where 2,048 keys of 8,192 are chosen.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import torch
from kernel_cases import Case, cold_copies
from torch import Tensor

from paged_serve.workers.checkpoint.stacked_experts import stacked_experts
from paged_serve.workers.geometry.layer_options import AttentionOptions, Indexer, Latent
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.latent.indexer import SelectedKeys, attend_selected, select_keys
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
INDEXER = Indexer(num_heads=64, head_dim=128, top_k=2048, interleaved=False)
SPARSE = replace(SIZES, indexer=INDEXER)
CONTEXT, TOKENS = 8192, (1, 64)
NO_INTEGERS = torch.empty(0, dtype=torch.int64)


def latent_cases(pool: Pool, cache: Tensor) -> Iterator[Case]:
    """`cache` is the memory of kernel_cases.make_cache()."""
    latents = _rows(cache, SIZES.cached_dim)
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


def sparse_cases(pool: Pool, cache: Tensor) -> Iterator[Case]:
    """`cache` is the memory of kernel_cases.make_cache()."""
    dense, sparse = (_rows(cache, size) for size in (SIZES.cached_dim, SPARSE.row_dim))
    for tokens in TOKENS:
        yield selecting_case(pool, sparse, tokens)
    for heads in HEADS:
        yield replace(attention_case(pool, dense, "decode", heads, 1, CONTEXT), kernel=f"sparse: dense, {heads} heads")
        for tokens in TOKENS:
            yield attending_case(pool, sparse, heads, tokens)


def selecting_case(pool: Pool, rows: Tensor, tokens: int) -> Case:
    """The last tokens of a request."""
    query = torch.randn(tokens, INDEXER.num_heads, INDEXER.head_dim).bfloat16()
    weights, turns = torch.randn(tokens, INDEXER.num_heads), cycle(_views(rows, tokens))
    out = SelectedKeys.take(Buffers(), tokens, INDEXER.top_k)
    return Case(
        "sparse: selection",
        f"{tokens} x {CONTEXT}",
        lambda: select_keys(pool, query, weights, next(turns), 0, SPARSE, out),
        CONTEXT * INDEXER.head_dim * 2,
        2 * INDEXER.num_heads * INDEXER.head_dim * tokens * CONTEXT,
        "bf16",
    )


def attending_case(pool: Pool, rows: Tensor, heads: int, tokens: int) -> Case:
    """Chosen at random, each token's own."""
    [view, *_] = _views(rows, tokens)
    query = torch.randn(tokens, heads, SIZES.cached_dim).bfloat16()
    out = torch.empty(tokens, heads, SIZES.kv_rank, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    turns = cycle([_chosen(rows, tokens, generator) for _ in range(8)])
    options = AttentionOptions(0.05)
    return Case(
        f"sparse: chosen, {heads} heads",
        f"{tokens} x {INDEXER.top_k}",
        lambda: attend_selected(pool, query, next(turns), view, 0, options, out),
        tokens * INDEXER.top_k * SIZES.cached_dim * 2,
        2 * (SIZES.cached_dim + SIZES.kv_rank) * heads * tokens * INDEXER.top_k,
        "bf16",
    )


def _rows(cache: Tensor, row_dim: int) -> Tensor:
    """The memory as blocks of such rows."""
    block = BLOCK_SIZE * row_dim
    return cache.view(-1)[: cache.numel() // block * block].view(-1, 1, BLOCK_SIZE, row_dim)


def _views(rows: Tensor, tokens: int) -> list[CacheView]:
    """Of one request in different blocks each."""
    order, per_request = (
        torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).int(),
        CONTEXT // BLOCK_SIZE,
    )
    tables = order[: len(order) // per_request * per_request].view(-1, 1, per_request)
    starts, lens = torch.tensor([0, tokens]).int(), torch.tensor([CONTEXT]).int()
    held = KVCache([rows], [rows], BLOCK_SIZE)
    return [CacheView(held, table, starts, lens, NO_INTEGERS, NO_INTEGERS, 0, 0) for table in tables]


def _chosen(rows: Tensor, tokens: int, generator: torch.Generator) -> SelectedKeys:
    slots, order = len(rows) * BLOCK_SIZE, torch.rand(tokens, CONTEXT, generator=generator).argsort(1)
    first = torch.randint(slots // CONTEXT, (tokens, 1), generator=generator) * CONTEXT
    chosen = first + order[:, : INDEXER.top_k].sort(1).values
    lens = torch.full((tokens,), INDEXER.top_k).int()
    return SelectedKeys(chosen.int().contiguous(), torch.arange(tokens + 1).int(), lens)
