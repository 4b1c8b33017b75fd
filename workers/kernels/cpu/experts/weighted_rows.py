"""Sums and products of rows with numbers of their own, by the kernels that weigh the outputs of experts.

A row's bits depend only on that row. A call is divided in pieces of at most TOKENS, so that the tables of places, whose
addresses recorded steps contain, never grow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ....geometry.experts import NUM_SHARES
from ..library import Pool
from ..parameters import DTYPE_CODES, packer, pointer
from ..structs.experts import CombineParams, DispatchParams

COMBINE, DISPATCH = packer(CombineParams), packer(DispatchParams)
TOKENS = 2048  # per call of a kernel


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Which `inputs` of a token's `stride` rows each of its `outputs` rows is summed from, for TOKENS tokens."""

    outputs: int
    inputs: int
    stride: int
    rows: Tensor  # [TOKENS * outputs, inputs] int32
    numbers: Tensor  # the same, as numbers of a token's rows

    @classmethod
    def of_each(cls, outputs: int, inputs: int) -> "Places":
        """All of a token's rows."""
        numbers = torch.arange(inputs, dtype=torch.int32).repeat(TOKENS, outputs, 1)
        rows = numbers + inputs * torch.arange(TOKENS, dtype=torch.int32).view(-1, 1, 1)
        return cls(outputs, inputs, inputs, rows.view(-1, inputs), numbers.view(-1, inputs))

    @classmethod
    def of_first(cls, stride: int) -> "Places":
        """The first of a token's `stride` rows."""
        rows = stride * torch.arange(TOKENS, dtype=torch.int32).view(-1, 1)
        return cls(1, 1, stride, rows, torch.zeros_like(rows))


def mix_rows(pool: Pool, x: Tensor, weights: Tensor | None, places: Places, out: Tensor) -> Tensor:
    """Set `out` [tokens * outputs, size] to sums of rows of `x` float32, times `weights` float32, rounded once.

    `x` has rows of `size` elements without gaps; `weights` are [tokens, outputs * inputs], None: 1.
    """
    tokens, size = len(out) // places.outputs, out.shape[1]
    assert x.dtype == torch.float32, x.dtype
    assert x.stride(1) == 1, x.stride()
    assert len(x) == tokens * places.inputs, (x.shape, tokens)
    assert len(x) == 1 or places.inputs * x.stride(0) == places.stride * size, (x.stride(), places.stride)
    assert out.is_contiguous()
    if weights is not None:
        assert weights.dtype == torch.float32, weights.dtype
        assert weights.shape == (tokens, places.outputs * places.inputs), weights.shape
        assert weights.is_contiguous()
    for first, count in _pieces(tokens):
        y = out.data_ptr() + first * places.outputs * size * out.itemsize
        read = x.data_ptr() + first * places.stride * size * x.itemsize
        own = None if weights is None else weights[first:]
        pointers = y, read, places.numbers.data_ptr(), places.rows.data_ptr(), pointer(own)
        sizes = count * places.outputs, size, places.inputs, places.inputs, 0, NUM_SHARES, DTYPE_CODES[out.dtype]
        pool.functions["combine_experts"](pool.handle, COMBINE(*pointers, size, *sizes))
    return out


def scale_rows(pool: Pool, x: Tensor, factors: Tensor, places: Places, out: Tensor) -> Tensor:
    """Set `out` [tokens, size], whose rows are apart as `places` says, to `x` times `factors` [tokens, 1] float32."""
    tokens, size = x.shape
    assert out.shape == x.shape
    assert out.dtype == x.dtype, (out.dtype, x.dtype)
    assert (x.stride(1), out.stride(1)) == (1, 1), (x.stride(), out.stride())
    assert tokens == 1 or out.stride(0) == places.stride * size, (out.stride(), places.stride)
    assert factors.dtype == torch.float32, factors.dtype
    assert factors.shape == (tokens, 1), factors.shape
    assert factors.is_contiguous()
    for first, count in _pieces(tokens):
        pointers = out[first:].data_ptr(), x[first:].data_ptr(), places.rows.data_ptr(), factors[first:].data_ptr()
        fields = DISPATCH(*pointers, x.stride(0), count, size, 1, DTYPE_CODES[x.dtype])
        pool.functions["dispatch_rows"](pool.handle, fields)
    return out


def _pieces(tokens: int) -> Iterator[tuple[int, int]]:
    for first in range(0, tokens, TOKENS):
        yield first, min(TOKENS, tokens - first)
