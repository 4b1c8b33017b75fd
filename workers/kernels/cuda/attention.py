"""Paged attention on CUDA. A token's bits depend only on its query and its request's keys and values.

Once per step and mask, `plan` lists the work from lengths on the device; then each layer calls `attention`. Both only
launch kernels on preallocated memory, with grids that depend on maxima, so a captured graph is valid for any lengths.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionOptions
from ...kv.cache_view import CacheView
from .attention_kernels import AttentionShape, decode_shape, merge_kernel, paged_kernel, plan_kernel, prefill_shape
from .kernel import LOG2_E, Launcher, pointer

SPLIT_KEYS = 512  # attention/work.cuh
DECODE_ROWS = 64  # of a request; the rows of a larger request are computed in larger tiles whose keys are not split


def _of(kind: type, names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, kind) for name in names.split())


POINTER, INT, INT64, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float


class AttentionPlanParams(ctypes.Structure):
    _fields_ = (
        *_of(POINTER, "decode prefill merges counts row_starts kv_lens"),
        *_of(INT, "requests group window attention_chunk is_bidirectional"),
        *_of(INT, "decode_rows decode_tile prefill_tile max_slots"),
    )


class PagedAttentionParams(ctypes.Structure):
    _fields_ = (
        *_of(POINTER, "out query keys values part_sums part_tops sinks slopes"),
        *_of(POINTER, "block_tables row_starts kv_lens work num_work"),
        *_of(INT64, "out_stride query_stride"),
        *_of(INT, "table_stride window"),
        *_of(FLOAT, "to_log2 value_scale before cap"),
    )


class AttentionMergeParams(ctypes.Structure):
    _fields_ = (
        *_of(POINTER, "out part_sums part_tops sinks row_starts merges num_merges"),
        *_of(INT64, "out_stride"),
        *_of(INT, "group"),
        *_of(FLOAT, "to_log2 value_scale"),
    )


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWork:
    """The work of one step for layers with the same mask, in device memory."""

    heads: AttentionShape
    arch: str
    blocks: int  # thread blocks per KV head: 2 * multiprocessors / KV heads fill the device
    decode: Tensor  # [any, 6] i32: Work of attention/work.cuh
    prefill: Tensor  # [any, 6] i32
    merges: Tensor  # [any, 5] i32: Merge
    counts: Tensor  # [3] i32: Counts
    part_sums: Tensor  # [slots, kv_heads, head_dim] f32
    part_tops: Tensor  # [slots, kv_heads, 2] f32
    window: int  # 0: all

    @classmethod
    def allocate(
        cls,
        heads: AttentionShape,
        arch: str,
        blocks: int,
        max_requests: int,
        max_tokens: int,
        max_slots: int,
        device: torch.device | str,
        window: int = 0,
        parts: "AttentionWork | None" = None,
    ) -> "AttentionWork":
        """Memory for steps of at most `max_requests` requests and `max_tokens` tokens.

        A slot holds the sums of one row over one split, `4 * head_dim + 8` bytes per KV head; a request without a free
        slot is computed by fewer blocks. Plans that are used one after another may share `parts`.
        """
        tiles = max_requests + -(-max_tokens * heads.group // decode_shape(heads).rows)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        lists = integers(tiles + max_slots, 6), integers(tiles, 6), integers(tiles, 5), integers(3)
        sums = parts.part_sums if parts else floats(max_slots, heads.kv_heads, heads.head_dim)
        tops = parts.part_tops if parts else floats(max_slots, heads.kv_heads, 2)
        return cls(heads, arch, blocks, *lists, sums, tops, window)


def plan(launcher: Launcher, plan: AttentionWork, view: CacheView, max_decode_rows: int = DECODE_ROWS) -> None:
    """List the work of the requests of `view`, whose tensors are on the device.

    Requests of up to `max_decode_rows` rows (tokens * group) are split; results do not depend on this.
    """
    row_starts, kv_lens = view.row_starts, view.kv_lens
    heads, requests = plan.heads, len(kv_lens)
    _check_lengths(plan, row_starts, kv_lens)
    lists = (plan.decode, plan.prefill, plan.merges, plan.counts)
    tiles = decode_shape(heads).rows, prefill_shape(heads, plan.arch).rows
    params = AttentionPlanParams(
        *(tensor.data_ptr() for tensor in (*lists, row_starts, kv_lens)),
        *(requests, heads.group, plan.window, heads.attention_chunk, heads.is_bidirectional),
        *(max_decode_rows, *tiles, len(plan.part_tops)),
    )
    launcher.launch(plan_kernel(), (1, 1, 1), params)


def attention(
    launcher: Launcher,
    plan: AttentionWork,
    query: Tensor,
    view: CacheView,
    layer: int,
    options: AttentionOptions,
    code_scales: tuple[float, float] = (1.0, 1.0),
    prefills: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """Attend with `query` [tokens, heads, head_dim] to a layer's keys and values; `view` is that of `plan`.

    `options` are those for which `plan` was allocated. fp8 keys are multiplied by the first of `code_scales`, values by
    the second. Positions that no token attends to may hold anything. If `prefills` is False, no request may have more
    rows than plan() splits. Returns the outputs [tokens, heads, head_dim].
    """
    keys, values = view.cache.keys[layer], view.cache.values[layer]
    block_tables, row_starts, kv_lens = view.block_tables, view.row_starts, view.kv_lens
    key_scale, value_scale = code_scales
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    _check(plan, query, keys, values, block_tables, out)
    _check_options(plan, options)
    _check_lengths(plan, row_starts, kv_lens)
    heads, cap = plan.heads, options.cap
    before, to_log2 = _factors(plan, options, key_scale)
    sinks_at, slopes_at = map(pointer, (options.sinks, options.slopes))
    parts = plan.part_sums.data_ptr(), plan.part_tops.data_ptr(), sinks_at
    lengths = block_tables.data_ptr(), row_starts.data_ptr(), kv_lens.data_ptr()
    grid = plan.blocks, heads.kv_heads, 1
    shapes = [(decode_shape(heads), plan.decode), (prefill_shape(heads, plan.arch), plan.prefill)]
    for index, (shape, work) in enumerate(shapes[: 1 + prefills]):
        params = PagedAttentionParams(
            *(out.data_ptr(), query.data_ptr(), keys.data_ptr(), values.data_ptr(), *parts, slopes_at, *lengths),
            *(work.data_ptr(), plan.counts[index].data_ptr(), out.stride(0), query.stride(0)),
            *(block_tables.stride(0), plan.window, to_log2, value_scale, before, cap),
        )
        launcher.launch(paged_kernel(heads, shape, plan.arch), grid, params)
    merge = AttentionMergeParams(
        *(out.data_ptr(), *parts, row_starts.data_ptr(), plan.merges.data_ptr(), plan.counts[2].data_ptr()),
        *(out.stride(0), heads.group, to_log2, value_scale),
    )
    launcher.launch(merge_kernel(heads), grid, merge)
    return out


def _factors(plan: AttentionWork, options: AttentionOptions, key_scale: float) -> tuple[float, float]:
    """What scores are multiplied by before the cap, if there is one, and then for powers of two."""
    scale = options.scale * key_scale
    assert scale > 0, (options.scale, key_scale)
    if options.cap:
        return 2 * LOG2_E * scale / options.cap, LOG2_E
    return scale, LOG2_E if plan.heads.has_alibi else LOG2_E * scale


def max_cache_bytes(keys: Tensor) -> int:
    """Of a layer's keys: 31 bits count the largest power of two of bytes that divides a row (attention/source.cuh)."""
    row_bytes = keys.shape[-1] * keys.itemsize
    return (row_bytes & -row_bytes) << 31


def _check_lengths(plan: AttentionWork, row_starts: Tensor, kv_lens: Tensor) -> None:
    assert row_starts.dtype == kv_lens.dtype == torch.int32
    assert row_starts.is_contiguous()
    assert kv_lens.is_contiguous()
    assert len(row_starts) == len(kv_lens) + 1 <= len(plan.prefill) + 1


def _check(plan: AttentionWork, query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor, out: Tensor) -> None:
    heads = plan.heads
    assert query.shape == out.shape
    assert query.shape[1:] == (heads.num_heads, heads.head_dim), query.shape
    assert len(query) * heads.group <= len(plan.prefill) * decode_shape(heads).rows
    assert query.dtype == out.dtype == heads.dtype
    assert query.stride()[1:] == out.stride()[1:] == (heads.head_dim, 1)
    assert query.stride(0) % 8 == out.stride(0) % 8 == query.data_ptr() % 16 == out.data_ptr() % 16 == 0
    assert keys.shape[1:] == (heads.kv_heads, heads.block_size, heads.head_dim), keys.shape
    assert values.shape == keys.shape
    assert keys.nbytes <= max_cache_bytes(keys), keys.shape
    assert keys.dtype == values.dtype == heads.cache_dtype
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert block_tables.dtype == torch.int32
    assert block_tables.stride(1) == 1


def _check_options(plan: AttentionWork, options: AttentionOptions) -> None:
    heads = plan.heads
    assert plan.window == options.window, (plan.window, options.window)
    assert heads.has_alibi == (options.slopes is not None)
    assert options.bias is None, "relative positions are not built"
    assert options.pairs is None, "disentangled attention is not built"
    assert heads.is_bidirectional == options.is_bidirectional
    assert heads.attention_chunk == options.attention_chunk
    for per_head in (options.sinks, options.slopes):
        if per_head is not None:
            assert per_head.dtype == torch.float32
            assert per_head.shape == (heads.num_heads,)
            assert per_head.is_contiguous()
