"""Copies KV blocks on the device: a shared block that is about to be written gets a copy of its own.

No step calls it yet: the engine shares full blocks alone, which are not written. A fork in the midst of a block (beams)
would need it. It is tested as all kernels are.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .kernel import Kernel, Launcher

THREADS = 256
PACKS_PER_THREAD = 4  # UNROLLED in block_copy.cu


class BlockCopyParams(ctypes.Structure):
    _fields_ = (("pairs", ctypes.c_void_p), ("planes", ctypes.c_void_p))


def planes_of(caches: Sequence[Tensor]) -> Tensor:
    """Where `caches` lie, all layers' keys and values [blocks, ...] of one size: [len(caches)] i64 on their device.

    Valid as long as they are; made once.
    """
    for cache in caches:
        assert cache.is_contiguous()
        assert cache.data_ptr() % 16 == 0
        assert cache[0].nbytes == caches[0][0].nbytes, cache.shape
    return torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=caches[0].device)


def copy_blocks(launcher: Launcher, pairs: Tensor, planes: Tensor, block_bytes: int) -> None:
    """In each of `planes`, the block pairs[i, 0] over the block pairs[i, 1]; `pairs` [pairs, 2] i32.

    Pairs are copied in no order, so a block that is written is in one pair only.
    """
    assert pairs.dtype == torch.int32, pairs.dtype
    assert pairs.shape == (len(pairs), 2), pairs.shape
    assert planes.dtype == torch.int64, planes.dtype
    assert planes.ndim == 1, planes.shape
    assert pairs.is_contiguous()
    assert planes.is_contiguous()
    if len(pairs):
        parts = -(-block_bytes // (16 * PACKS_PER_THREAD * THREADS))
        params = BlockCopyParams(pairs.data_ptr(), planes.data_ptr())
        launcher.launch(block_copy_kernel(block_bytes), (len(pairs), parts, len(planes)), params)


def block_copy_kernel(block_bytes: int) -> Kernel:
    assert block_bytes % 16 == 0, block_bytes
    return Kernel("block_copy.cu", "block_copy", (("BLOCK_BYTES", block_bytes),), THREADS)


def production_kernels() -> list[Kernel]:
    """Blocks of 16 and 64 tokens of 8 heads of 128: 16-bit, and fp8's of 16."""
    return [block_copy_kernel(block_bytes) for block_bytes in (32 << 10, 128 << 10, 16 << 10)]
