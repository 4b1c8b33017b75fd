"""Chooses attention kernels by head dimension, tile shape and shared memory."""

from dataclasses import dataclass
from functools import cache

import torch

from .kernel import SCALARS, Kernel

TILE_KEYS = 64  # attention/work.cuh
PLAN_THREADS, MERGE_THREADS = 256, 128
PLACES_BYTES = 2 * TILE_KEYS * 4  # attention/source.cuh
SHARED_KIB = {"sm_80": 164, "sm_87": 164, "sm_90a": 228, "sm_100": 228, "sm_103": 228}  # of a multiprocessor
MIN_SHARED_KIB = 100  # of a multiprocessor of other architectures
RESERVED_BYTES = 1024  # of each block
MAX_HEAD_DIM = 512
KEPT_HEAD_DIM = 256  # up to this, queries are in registers and joined sums in shared memory, else the reverse
MAX_THREADS = 256  # of the largest kernels that fit the registers of a multiprocessor
KV_NAMES = SCALARS | {torch.float8_e4m3fn: "fp8"}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The parameters for which attention kernels are compiled, besides the device."""

    dtype: torch.dtype  # of queries and results: bfloat16 or float16
    cache_dtype: torch.dtype  # the same, or float8_e4m3fn
    num_heads: int
    kv_heads: int
    head_dim: int  # a multiple of 16, at most MAX_HEAD_DIM
    block_size: int  # any
    has_alibi: bool = False
    is_bidirectional: bool = False
    attention_chunk: int = 0  # tokens; 0: none

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
    """The division of a block's work among its warps: each has 16 rows; `sharing` warps have the same rows."""

    row_warps: int
    sharing: int
    slots: int  # the maximum of half tiles in shared memory; one is read while the others are loaded

    @property
    def rows(self) -> int:
        return 16 * self.row_warps

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * self.sharing


def decode_shape(heads: AttentionShape) -> Shape:
    """The shape for few rows, shared by all warps; bandwidth-bound, so as many loads as fit are in flight."""
    return Shape(1, 4, slots=6 if heads.cache_dtype == heads.dtype else 8)


@cache
def prefill_shape(heads: AttentionShape, arch: str) -> Shape:
    """The shape with separate rows for each warp; two or four share rows whose sums do not fit one warp's registers."""
    division = (4, 1) if heads.head_dim <= 128 else (4, 2) if heads.head_dim <= KEPT_HEAD_DIM else (2, 4)
    shape = Shape(*division, slots=4)
    return shape if _ring(heads, shape, arch)[0] >= 2 else decode_shape(heads)


def _fixed_bytes(heads: AttentionShape, shape: Shape) -> int:
    """Shared memory besides the ring: queries or sums, data exchanged between warps, widened fp8, and places."""
    warp_pairs = -(-heads.head_dim // 16 // shape.sharing)
    joined = 2 * warp_pairs * shape.threads * 16 if heads.head_dim <= KEPT_HEAD_DIM else 0
    front = max(shape.rows * heads.stride, joined)
    exchange = shape.rows * (TILE_KEYS * 2 + 32) if shape.sharing > 1 else 0
    wide = TILE_KEYS * heads.stride if heads.cache_dtype != heads.dtype else 0
    return front + exchange + wide + PLACES_BYTES


def _slot_bytes(heads: AttentionShape) -> int:
    return TILE_KEYS * (heads.head_dim * heads.cache_dtype.itemsize // 16 | 1) * 16


def _ring(heads: AttentionShape, shape: Shape, arch: str) -> tuple[int, int]:
    """Slots, and blocks per multiprocessor: two, or one if two blocks would have less than two slots each.

    Wide heads may have one slot.
    """
    for least in (2,) if heads.head_dim <= KEPT_HEAD_DIM else (2, 1):
        for blocks in (2, 1):
            free = SHARED_KIB.get(arch, MIN_SHARED_KIB) * 1024 // blocks - RESERVED_BYTES - _fixed_bytes(heads, shape)
            if (slots := min(free // _slot_bytes(heads), shape.slots)) >= least:
                return slots, min(blocks, MAX_THREADS // shape.threads)
    return 0, 0


@cache
def paged_kernel(heads: AttentionShape, shape: Shape, arch: str) -> Kernel:
    """The kernel for `arch`; the number of slots depends on the shared memory of `arch`."""
    ring, blocks = _ring(heads, shape, arch)
    assert ring, (heads, shape, arch)
    defines = (
        *(("SCALAR", SCALARS[heads.dtype]), ("KV", KV_NAMES[heads.cache_dtype]), ("HEAD_DIM", heads.head_dim)),
        *(("GROUP", heads.group), ("BLOCK_SIZE", heads.block_size)),
        *(("HAS_ALIBI", int(heads.has_alibi)), ("IS_BIDIRECTIONAL", int(heads.is_bidirectional))),
        ("ATTENTION_CHUNK", heads.attention_chunk),
        *(("ROW_WARPS", shape.row_warps), ("SHARING", shape.sharing), ("RING", ring), ("MIN_BLOCKS", blocks)),
    )
    shared = _fixed_bytes(heads, shape) + ring * _slot_bytes(heads)
    return Kernel("attention/paged_attention.cu", "paged_attention", defines, shape.threads, shared)


@cache
def merge_kernel(heads: AttentionShape) -> Kernel:
    defines = ("SCALAR", SCALARS[heads.dtype]), ("HEAD_DIM", heads.head_dim)
    return Kernel("attention/merge.cu", "attention_merge", defines, MERGE_THREADS)


@cache
def plan_kernel() -> Kernel:
    shared = PLAN_THREADS // 32 * 4 + PLAN_THREADS * 40
    return Kernel("attention/plan.cu", "attention_plan", (), PLAN_THREADS, shared)


def kernels_of(heads: AttentionShape, arch: str) -> list[Kernel]:
    """All kernels that attention launches for a model with these `heads`."""
    shapes = decode_shape(heads), prefill_shape(heads, arch)
    paged = dict.fromkeys(paged_kernel(heads, shape, arch) for shape in shapes)
    return [plan_kernel(), merge_kernel(heads), *paged]


def production_kernels(arch: str = "sm_90a") -> list[Kernel]:
    """Kernels that cover all head dimensions, dtypes, kinds of cache, block sizes and options; not all combinations."""
    bf16, fp16, fp8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
    heads = [AttentionShape(bf16, bf16, 32, 8, dim, 16) for dim in (64, 80, 96, 128, 256, 512)]
    heads += [AttentionShape(bf16, fp8, 32, 4, dim, 32) for dim in (128, 256)]
    heads += [AttentionShape(fp16, fp8, 8, 8, 64, 64)]
    heads += [AttentionShape(bf16, bf16, 32, 32, dim, 16, has_alibi=True) for dim in (64, 128)]
    heads += [AttentionShape(bf16, bf16, 12, 12, 64, 16, is_bidirectional=True)]
    heads += [AttentionShape(bf16, bf16, 40, 8, 128, 16, attention_chunk=8192)]
    return list(dict.fromkeys(kernel for each in heads for kernel in kernels_of(each, arch)))
