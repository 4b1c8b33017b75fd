"""Latent attention over the paged cache. A token's bits depend only on its query and its request's cached vectors.

As in attention.py, `plan` lists a step's work once, and each layer calls `latent_attention`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ....geometry.layer_options import AttentionOptions, Latent
from ....kv.cache_view import CacheView
from ..attention import AttentionMergeParams, AttentionPlanParams, PagedAttentionParams, max_cache_bytes
from ..attention_kernels import (
    MERGE_THREADS,
    MIN_SHARED_KIB,
    PLACES_BYTES,
    RESERVED_BYTES,
    SHARED_KIB,
    TILE_KEYS,
    plan_kernel,
)
from ..kernel import LOG2_E, SCALARS, Kernel, Launcher

SMALL_TILE = 16  # rows of the smallest shape, for the sizes of lists
SPLIT_TOKENS = 4  # of a request; the keys of more tokens are not split


class LatentShape(NamedTuple):
    """The division of a block's work: each row warp has 16 rows; `sharing` warps have the same rows."""

    row_warps: int
    sharing: int
    stages: int  # tiles of keys in shared memory

    @property
    def rows(self) -> int:
        return 16 * self.row_warps

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.sharing


SHAPES = LatentShape(2, 4, 2), LatentShape(2, 4, 1), LatentShape(1, 4, 2), LatentShape(1, 4, 1)  # the best first


@dataclass(frozen=True, slots=True)
class LatentHeadsShape:
    """The parameters for which the kernels are compiled, besides the device's shared memory."""

    dtype: torch.dtype
    num_heads: int
    head_dim: int  # of a cached vector: kv_rank + rope_dim, a multiple of 16
    value_dim: int  # kv_rank, a multiple of 16
    block_size: int

    @classmethod
    def of(cls, dtype: torch.dtype, num_heads: int, sizes: Latent, block_size: int) -> "LatentHeadsShape":
        return cls(dtype, num_heads, sizes.cached_dim, sizes.kv_rank, block_size)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in shared memory: an odd number of 16-byte chunks."""
        return (self.head_dim // 8 | 1) * 16


@dataclass(frozen=True, slots=True, eq=False)
class LatentWork:
    """The work of one step, in device memory."""

    heads: LatentHeadsShape
    shape: LatentShape
    blocks: int
    decode: Tensor  # [any, 6] i32: Work of attention/work.cuh
    prefill: Tensor  # [any, 6] i32
    merges: Tensor  # [any, 5] i32: Merge
    counts: Tensor  # [3] i32: Counts
    part_sums: Tensor  # [slots, value_dim] f32
    part_tops: Tensor  # [slots, 2] f32

    @classmethod
    def allocate(
        cls,
        heads: LatentHeadsShape,
        shape: LatentShape,
        blocks: int,
        max_requests: int,
        max_tokens: int,
        max_slots: int,
        device: torch.device | str,
        parts: "LatentWork | None" = None,
    ) -> "LatentWork":
        """Memory for steps of at most `max_requests` requests and `max_tokens` tokens; see AttentionWork."""
        tiles = max_requests + -(-max_tokens * heads.num_heads // SMALL_TILE)

        def integers(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=torch.int32, device=device)

        def floats(*sizes: int) -> Tensor:
            return torch.empty(sizes, dtype=torch.float32, device=device)

        lists = integers(tiles + max_slots, 6), integers(tiles, 6), integers(tiles, 5), integers(3)
        sums = parts.part_sums if parts else floats(max_slots, heads.value_dim)
        tops = parts.part_tops if parts else floats(max_slots, 2)
        return cls(heads, shape, blocks, *lists, sums, tops)


def shape_for(heads: LatentHeadsShape, arch: str) -> LatentShape | None:
    """The best shape whose tiles fit the shared memory of `arch`; None: there is none."""
    free = SHARED_KIB.get(arch, MIN_SHARED_KIB) * 1024 - RESERVED_BYTES
    return next((shape for shape in SHAPES if _shared_bytes(heads, shape) <= free), None)


def plan(launcher: Launcher, work: LatentWork, view: CacheView, split_tokens: int = SPLIT_TOKENS) -> None:
    """List the work of the requests of `view`. Results do not depend on `split_tokens`."""
    row_starts, kv_lens, heads = view.row_starts, view.kv_lens, work.heads
    assert row_starts.dtype == kv_lens.dtype == torch.int32
    assert row_starts.is_contiguous()
    assert kv_lens.is_contiguous()
    assert len(kv_lens) <= len(work.prefill)
    lists, rows = (work.decode, work.prefill, work.merges, work.counts), work.shape.rows
    params = AttentionPlanParams(
        *(tensor.data_ptr() for tensor in (*lists, row_starts, kv_lens)),
        *(len(kv_lens), heads.num_heads, 0, 0, False),
        *(split_tokens * heads.num_heads, rows, rows, len(work.part_tops)),
    )
    launcher.launch(plan_kernel(), (1, 1, 1), params)


def latent_attention(
    launcher: Launcher,
    work: LatentWork,
    query: Tensor,
    view: CacheView,
    layer: int,
    options: AttentionOptions,
    out: Tensor,
    *,
    prefills: bool = True,
) -> Tensor:
    """Attend with `query` [tokens, heads, head_dim] to the layer's vectors; `view` is that of `work`.

    If `prefills` is False, no request may have more tokens than plan() splits. Positions that no token attends to may
    hold anything. Returns `out` [tokens, heads, value_dim].
    """
    heads, keys, tables = work.heads, view.cache.keys[layer], view.block_tables
    _check(work, query, keys, tables, out)
    _check_options(options)
    to_log2, value_scale = LOG2_E * options.scale, 1.0
    parts = work.part_sums.data_ptr(), work.part_tops.data_ptr(), None
    lengths = tables.data_ptr(), view.row_starts.data_ptr(), view.kv_lens.data_ptr()
    for index, listed in enumerate((work.decode, work.prefill)[: 1 + prefills]):
        params = PagedAttentionParams(
            *(out.data_ptr(), query.data_ptr(), keys.data_ptr(), None, *parts, None, *lengths),
            *(listed.data_ptr(), work.counts[index].data_ptr(), out.stride(0), query.stride(0)),
            *(tables.stride(0), 0, to_log2, value_scale, options.scale, 0.0),
        )
        launcher.launch(latent_kernel(heads, work.shape), (work.blocks, 1, 1), params)
    merge = AttentionMergeParams(
        *(out.data_ptr(), *parts, view.row_starts.data_ptr(), work.merges.data_ptr(), work.counts[2].data_ptr()),
        *(out.stride(0), heads.num_heads, to_log2, value_scale),
    )
    launcher.launch(merge_kernel(heads), (work.blocks, 1, 1), merge)
    return out


def latent_kernel(heads: LatentHeadsShape, shape: LatentShape) -> Kernel:
    scalar = SCALARS[heads.dtype]
    defines = (
        *(("SCALAR", scalar), ("KV", scalar), ("HEAD_DIM", heads.head_dim), ("VALUE_DIM", heads.value_dim)),
        *(("GROUP", heads.num_heads), ("BLOCK_SIZE", heads.block_size)),
        *(("ROW_WARPS", shape.row_warps), ("SHARING", shape.sharing), ("STAGES", shape.stages), ("MIN_BLOCKS", 1)),
        *(("IS_BIDIRECTIONAL", 0), ("ATTENTION_CHUNK", 0)),
    )
    return Kernel("latent/latent_attention.cu", "latent_attention", defines, shape.threads, _shared_bytes(heads, shape))


def merge_kernel(heads: LatentHeadsShape) -> Kernel:
    defines = ("SCALAR", SCALARS[heads.dtype]), ("HEAD_DIM", heads.value_dim)
    return Kernel("attention/merge.cu", "attention_merge", defines, MERGE_THREADS)


def production_kernels(arch: str = "sm_90a") -> list[Kernel]:
    """Kernels of DeepSeek-V2-Lite, and of V3 on one rank and on eight."""
    heads = [
        LatentHeadsShape(torch.bfloat16, 128, 576, 512, 16),
        LatentHeadsShape(torch.bfloat16, 16, 576, 512, 64),
        LatentHeadsShape(torch.float16, 16, 576, 512, 16),
    ]
    shapes = [(each, shape) for each in heads if (shape := shape_for(each, arch)) is not None]
    return [*(latent_kernel(*pair) for pair in shapes), merge_kernel(heads[0])]


def _shared_bytes(heads: LatentHeadsShape, shape: LatentShape) -> int:
    """Queries, what warps exchange, tiles of keys, and their places."""
    exchange = shape.rows * (TILE_KEYS * 2 + 32) if shape.sharing > 1 else 0
    return (shape.rows + shape.stages * TILE_KEYS) * heads.row_bytes + exchange + PLACES_BYTES


def _check(work: LatentWork, query: Tensor, keys: Tensor, tables: Tensor, out: Tensor) -> None:
    heads = work.heads
    assert query.shape == (len(out), heads.num_heads, heads.head_dim), query.shape
    assert out.shape[1:] == (heads.num_heads, heads.value_dim), out.shape
    assert len(query) * heads.num_heads <= len(work.prefill) * SMALL_TILE
    assert query.dtype == out.dtype == keys.dtype == heads.dtype
    assert query.stride()[1:] == (heads.head_dim, 1), query.stride()
    assert out.stride()[1:] == (heads.value_dim, 1), out.stride()
    assert query.stride(0) % 8 == out.stride(0) % 8 == query.data_ptr() % 16 == out.data_ptr() % 16 == 0
    assert keys.shape[1:] == (1, heads.block_size, heads.head_dim), keys.shape
    assert keys.is_contiguous()
    assert keys.nbytes <= max_cache_bytes(keys), keys.shape
    assert tables.dtype == torch.int32, tables.dtype
    assert tables.stride(1) == 1, tables.stride()


def _check_options(options: AttentionOptions) -> None:
    assert options.scale > 0, options.scale
    assert not options.window, options.window
    assert not options.cap, options.cap
    assert not options.is_bidirectional
    assert not options.attention_chunk
    assert options.slopes is options.bias is options.sinks is None
