"""Random tensors with the same bits on every machine; torch's normal numbers depend on its vector instructions.

They are computed with Philox and integers, then single IEEE operations.
"""

import math

import numpy as np
import torch
from torch import Tensor

KINDS = ("plain", "tiny", "wide", "huge", "halves")  # arguments of numbers()


def normals(shape: tuple[int, ...], seed: int) -> Tensor:
    """Nearly normal float32 numbers: sums of four uniform numbers, scaled to unit variance."""
    words = np.random.Philox(key=seed).random_raw(math.prod(shape))
    quarters = (words[:, None] >> np.arange(0, 64, 16, dtype=np.uint64)) & np.uint64(0xFFFF)
    centred = quarters.astype(np.int64).sum(1) - 2 * 0xFFFF
    return torch.from_numpy((centred * (math.sqrt(3.0) / 0x10000)).astype(np.float32)).reshape(shape)


def integers(low: int, high: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Integers in [low, high), int64."""
    words = np.random.Philox(key=seed).random_raw(math.prod(shape))
    return torch.from_numpy((words % np.uint64(high - low)).astype(np.int64) + low).reshape(shape)


def numbers(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """float32 numbers of one of KINDS: "plain" are normal; products of "tiny" are denormal or nearly so; "wide" have
    any exponent, including denormals and zeros; sums of "huge" overflow; "halves" have float16's range, including
    subnormals and infinity."""
    plain = normals(shape, seed)
    lowest, highest = {"plain": (0, 1), "tiny": (-76, -57), "wide": (-150, 60), "huge": (40, 66), "halves": (-26, 16)}[
        kind
    ]
    exponents = integers(lowest, highest, shape, seed + 1000)
    scaled = np.ldexp(plain.numpy(), exponents.numpy().astype(np.int32))
    if kind == "wide":
        scaled[integers(0, 8, shape, seed + 2000).numpy() == 0] = 0.0
    return torch.from_numpy(scaled.astype(np.float32))


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """Assert equal bits, including those of zeros; only NaN may have any bits where NaN is expected."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.is_floating_point():
        assert torch.equal(found.isnan(), expected.isnan())
        found, expected = (x.masked_fill(x.isnan(), 0.0).view(_INTEGERS[x.dtype]) for x in (found, expected))
    differing = found != expected
    assert not differing.any(), f"{int(differing.sum())} of {differing.numel()} differ, first {differing.nonzero()[:3]}"


_INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
