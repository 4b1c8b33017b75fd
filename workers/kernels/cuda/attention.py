"""Paged attention on CUDA. A token's bits depend on its query and its request's keys alone.

Once per step and window `plan` lists the work, from lengths that lie on the device; then each layer calls `attention`.
Both only launch kernels on preallocated memory with a grid that follows from maxima, so one recorded graph serves any
lengths.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from .kernel import SCALARS, Kernel, Launcher

SPLIT_KEYS, TILE_KEYS = 512, 64  # attention_work.cuh
DECODE_ROWS = 64  # of a request; more are computed in larger tiles whose keys are not split
PLAN_THREADS, MERGE_THREADS = 256, 128
SHARED_KIB = {"sm_80": 164, "sm_87": 164, "sm_90a": 228, "sm_100": 228, "sm_103": 228}  # of a multiprocessor
LEAST_SHARED_KIB = 100  # of the others
RESERVED_BYTES = 1024  # of each block
MAX_THREADS = 256  # of a multiprocessor that has the registers for the largest kernels
LOG2_E = 1.4426950408889634
KV_NAMES = SCALARS | {torch.float8_e4m3fn: "fp8"}


def _of(kind: type, names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, kind) for name in names.split())


POINTER, INT, INT64, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float


class AttentionPlanParams(ctypes.Structure):
    _fields_ = (
        *_of(POINTER, "decode prefill merges counts row_starts kv_lens"),
        *_of(INT, "requests group window decode_rows decode_tile prefill_tile max_slots"),
    )


class PagedAttentionParams(ctypes.Structure):
    _fields_ = (
        *_of(POINTER, "out query keys values part_sums part_tops sinks block_tables row_starts kv_lens work num_work"),
        *_of(INT64, "out_stride query_stride"),
        *_of(INT, "table_stride window"),
        *_of(FLOAT, "to_log2 value_scale before_cap cap"),
    )


class AttentionMergeParams(ctypes.Structure):
    _fields_ = (
        *_of(POINTER, "out part_sums part_tops sinks row_starts merges num_merges"),
        *_of(INT64, "out_stride"),
        *_of(INT, "group"),
        *_of(FLOAT, "to_log2 value_scale"),
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """What attention is specialised for, besides the device."""

    dtype: torch.dtype  # of queries and results: bfloat16 or float16
    cache_dtype: torch.dtype  # the same, or float8_e4m3fn
    num_heads: int
    kv_heads: int
    head_dim: int  # a multiple of 16, at most 256
    block_size: int  # 16, 32 or 64

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.kv_heads

    @property
    def stride(self) -> int:
        """Bytes of a row in shared memory: an odd number of 16-byte chunks."""
        return (self.head_dim // 8 | 1) * 16


@dataclass(frozen=True, slots=True)
class Shape:
    """How the warps of a block divide its work: 16 rows each, `sharing` of them the same rows."""

    row_warps: int
    sharing: int
    slots: int  # half tiles in shared memory, at most; one is read while the others fill

    @property
    def rows(self) -> int:
        return 16 * self.row_warps

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.sharing


def decode_shape(heads: Heads) -> Shape:
    """Few rows, so that the warps share them; memory decides, and as much as fits is under way."""
    return Shape(1, 4, slots=6 if heads.cache_dtype == heads.dtype else 8)


def prefill_shape(heads: Heads, arch: str) -> Shape:
    """Rows of its own for each warp; two warps share them where one cannot hold their sums in registers."""
    shape = Shape(4, 1, slots=4) if heads.head_dim <= 128 else Shape(4, 2, slots=4)
    return shape if _ring(heads, shape, arch)[0] >= 2 else decode_shape(heads)


def _fixed_bytes(heads: Heads, shape: Shape) -> int:
    """Shared memory besides the ring: queries or sums, what warps tell each other, widened fp8."""
    warp_pairs = -(-heads.head_dim // 16 // shape.sharing)
    front = max(shape.rows * heads.stride, 2 * warp_pairs * shape.threads * 16)
    exchange = shape.rows * (TILE_KEYS * 2 + 32) if shape.sharing > 1 else 0
    return front + exchange + (TILE_KEYS * heads.stride if heads.cache_dtype != heads.dtype else 0)


def _slot_bytes(heads: Heads) -> int:
    return TILE_KEYS * (heads.head_dim * heads.cache_dtype.itemsize // 16 | 1) * 16


def _ring(heads: Heads, shape: Shape, arch: str) -> tuple[int, int]:
    """Slots, and blocks that fit on a multiprocessor: two, or one where two would have less than two slots."""
    for blocks in (2, 1):
        free = SHARED_KIB.get(arch, LEAST_SHARED_KIB) * 1024 // blocks - RESERVED_BYTES - _fixed_bytes(heads, shape)
        if (slots := min(free // _slot_bytes(heads), shape.slots)) >= 2:
            return slots, min(blocks, MAX_THREADS // shape.threads)
    return 0, 0


def paged_kernel(heads: Heads, shape: Shape, arch: str) -> Kernel:
    """For `arch`, whose shared memory says how many slots there are."""
    ring, blocks = _ring(heads, shape, arch)
    assert ring >= 2, (heads, shape, arch)
    defines = (
        *(("SCALAR", SCALARS[heads.dtype]), ("KV", KV_NAMES[heads.cache_dtype]), ("HEAD_DIM", heads.head_dim)),
        *(("GROUP", heads.group), ("BLOCK_SIZE", heads.block_size)),
        *(("ROW_WARPS", shape.row_warps), ("SHARING", shape.sharing), ("RING", ring), ("MIN_BLOCKS", blocks)),
    )
    shared = _fixed_bytes(heads, shape) + ring * _slot_bytes(heads)
    return Kernel("paged_attention.cu", "paged_attention", defines, shape.threads, shared)


def merge_kernel(heads: Heads) -> Kernel:
    defines = ("SCALAR", SCALARS[heads.dtype]), ("HEAD_DIM", heads.head_dim)
    return Kernel("attention_merge.cu", "attention_merge", defines, MERGE_THREADS)


def plan_kernel() -> Kernel:
    shared = PLAN_THREADS // 32 * 4 + PLAN_THREADS * 40
    return Kernel("attention_plan.cu", "attention_plan", (), PLAN_THREADS, shared)


def kernels_of(heads: Heads, arch: str) -> list[Kernel]:
    """All that attention launches for a model with such heads."""
    shapes = decode_shape(heads), prefill_shape(heads, arch)
    paged = dict.fromkeys(paged_kernel(heads, shape, arch) for shape in shapes)
    return [plan_kernel(), merge_kernel(heads), *paged]


def production_kernels(arch: str = "sm_90a") -> list[Kernel]:
    """Every head dimension, dtype, kind of cache and size of block; not each with each."""
    bf16, fp16, fp8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
    heads = [Heads(bf16, bf16, 32, 8, dim, 16) for dim in (64, 80, 96, 128, 256)]
    heads += [Heads(bf16, fp8, 32, 4, dim, 32) for dim in (128, 256)]
    heads += [Heads(fp16, fp8, 8, 8, 64, 64)]
    return list(dict.fromkeys(kernel for each in heads for kernel in kernels_of(each, arch)))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The work of one step in memory of the device, for layers of one window."""

    heads: Heads
    arch: str
    blocks: int  # of the grid per KV head: twice the multiprocessors / KV heads fills the device
    decode: Tensor  # [any, 6] i32: Work of attention_work.cuh
    prefill: Tensor  # [any, 6] i32
    merges: Tensor  # [any, 5] i32: Merge
    counts: Tensor  # [3] i32: Counts
    part_sums: Tensor  # [slots, kv_heads, head_dim] f32
    part_tops: Tensor  # [slots, kv_heads, 2] f32
    window: int  # 0: all

    @classmethod
    def allocate(
        cls,
        heads: Heads,
        arch: str,
        blocks: int,
        max_requests: int,
        max_tokens: int,
        max_slots: int,
        device: torch.device | str,
        window: int = 0,
        parts: "Plan | None" = None,
    ) -> "Plan":
        """For steps of at most so many requests and tokens.

        A slot holds what one row sums over one split, `4 * head_dim + 8` bytes a KV head; a request that finds none
        free is computed all the same, by fewer blocks. Plans that are used one after another may share `parts`.
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


def plan(
    launcher: Launcher, plan: Plan, row_starts: Tensor, kv_lens: Tensor, max_decode_rows: int = DECODE_ROWS
) -> None:
    """Lists the work of requests that own tokens row_starts[r]:row_starts[r + 1], the last of kv_lens[r] positions.

    Both are int32 on the device. Requests of up to `max_decode_rows` rows (tokens * group) are cut into splits; results
    do not depend on it.
    """
    heads, requests = plan.heads, len(kv_lens)
    _check_lengths(plan, row_starts, kv_lens)
    lists = (plan.decode, plan.prefill, plan.merges, plan.counts)
    tiles = decode_shape(heads).rows, prefill_shape(heads, plan.arch).rows
    params = AttentionPlanParams(
        *(tensor.data_ptr() for tensor in (*lists, row_starts, kv_lens)),
        *(requests, heads.group, plan.window, max_decode_rows, *tiles, len(plan.part_tops)),
    )
    launcher.launch(plan_kernel(), (1, 1, 1), params)


def attention(
    launcher: Launcher,
    plan: Plan,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    row_starts: Tensor,
    kv_lens: Tensor,
    scale: float,
    cap: float = 0.0,
    sinks: Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    prefills: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """`query` [tokens, heads, head_dim] over `keys` and `values` [num_blocks, kv_heads, block_size, head_dim].

    Position p of request r lies in block block_tables[r, p // block_size]; `row_starts` and `kv_lens` are those of
    `plan`. A token sees the positions up to its own, of them the last `plan.window` if that is not 0. Scores are
    multiplied by `scale`, then become cap * tanh(score / cap) unless `cap` is 0; `sinks` [heads] float32 join the
    denominators. fp8 keys and values count `key_scale` and `value_scale` times. What no token sees may hold anything.
    `prefills` False promises that no request has more rows than plan() cuts. Returns [tokens, heads, head_dim].
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    _check(plan, query, keys, values, block_tables, sinks, out)
    _check_lengths(plan, row_starts, kv_lens)
    assert scale * key_scale > 0, (scale, key_scale)
    heads = plan.heads
    scale *= key_scale
    to_log2 = LOG2_E if cap else LOG2_E * scale
    capping = (2 * LOG2_E * scale / cap, cap) if cap else (0.0, 0.0)
    sinks_at = None if sinks is None else sinks.data_ptr()
    parts = plan.part_sums.data_ptr(), plan.part_tops.data_ptr(), sinks_at
    lengths = block_tables.data_ptr(), row_starts.data_ptr(), kv_lens.data_ptr()
    grid = plan.blocks, heads.kv_heads, 1
    shapes = [(decode_shape(heads), plan.decode), (prefill_shape(heads, plan.arch), plan.prefill)]
    for index, (shape, work) in enumerate(shapes[: 1 + prefills]):
        params = PagedAttentionParams(
            *(out.data_ptr(), query.data_ptr(), keys.data_ptr(), values.data_ptr(), *parts, *lengths),
            *(work.data_ptr(), plan.counts[index].data_ptr(), out.stride(0), query.stride(0)),
            *(block_tables.stride(0), plan.window, to_log2, value_scale, *capping),
        )
        launcher.launch(paged_kernel(heads, shape, plan.arch), grid, params)
    merge = AttentionMergeParams(
        *(out.data_ptr(), *parts, row_starts.data_ptr(), plan.merges.data_ptr(), plan.counts[2].data_ptr()),
        *(out.stride(0), heads.group, to_log2, value_scale),
    )
    launcher.launch(merge_kernel(heads), grid, merge)
    return out


def _check_lengths(plan: Plan, row_starts: Tensor, kv_lens: Tensor) -> None:
    assert row_starts.dtype == kv_lens.dtype == torch.int32
    assert row_starts.is_contiguous()
    assert kv_lens.is_contiguous()
    assert len(row_starts) == len(kv_lens) + 1 <= len(plan.prefill) + 1


def _check(
    plan: Plan, query: Tensor, keys: Tensor, values: Tensor, block_tables: Tensor, sinks: Tensor | None, out: Tensor
) -> None:
    heads = plan.heads
    assert query.shape == out.shape
    assert query.shape[1:] == (heads.num_heads, heads.head_dim), query.shape
    assert len(query) * heads.group <= len(plan.prefill) * decode_shape(heads).rows
    assert query.dtype == out.dtype == heads.dtype
    assert query.stride()[1:] == out.stride()[1:] == (heads.head_dim, 1)
    assert query.stride(0) % 8 == out.stride(0) % 8 == query.data_ptr() % 16 == out.data_ptr() % 16 == 0
    assert keys.shape[1:] == (heads.kv_heads, heads.block_size, heads.head_dim), keys.shape
    assert values.shape == keys.shape
    assert keys.dtype == values.dtype == heads.cache_dtype
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert block_tables.dtype == torch.int32
    assert block_tables.stride(1) == 1
    if sinks is not None:
        assert sinks.dtype == torch.float32
        assert sinks.shape == (heads.num_heads,)
        assert sinks.is_contiguous()
