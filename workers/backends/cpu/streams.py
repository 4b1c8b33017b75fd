"""The StreamOps of our CPU kernels."""

import torch
from torch import Tensor

from ...geometry.model_options import Activation
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.elementwise import activate, normalise
from ...kernels.cpu.experts.weighted_rows import Places, mix_rows, scale_rows
from ...kernels.cpu.gemm import gemm
from ...kernels.cpu.library import Pool
from ...kernels.cpu.loading import packed
from ...kernels.cpu.recurrent.factors import copy_rows, scale_columns
from ...layers.embedding import Table
from ...layers.streams.stream_ops import NO_EPS, Deviations
from .products.packed_linear import PackedTable

HALF_PRODUCT = Activation("clamped", is_gated=True, slope=0.0, limit=3e38)  # x * (y + 1) / 2


class CpuDeviations:
    """A row's deviation is the mean of x * norm(x), as norm(x) is x, less its mean if centred, by the deviation.

    The means are a product with a vector of ones, summed in float32.
    """

    def __init__(self, pool: Pool, buffers: Buffers, size: int, dtype: torch.dtype, *, is_centred: bool):
        self._pool = pool
        self._buffers = buffers
        self._is_centred = is_centred
        self._weight, self._bias = torch.ones(size), -torch.ones(size)
        self._ones = packed(pool, torch.ones((1, size), dtype=dtype), must_be_finite=True)
        self._factor = torch.tensor([2.0 / size])

    def __call__(self, x: Tensor) -> Tensor:
        pool, (tokens, size) = self._pool, x.shape
        normed, products = (
            self._buffers.take(f"{role} of rows", tokens, size, x.dtype) for role in ("norms", "products")
        )
        normalise(pool, x, self._weight, self._bias, NO_EPS, is_centred=self._is_centred, out=normed)
        if not x.is_contiguous():
            x = copy_rows(pool, x, self._buffers.take("copies of rows", tokens, size, x.dtype))
        activate(pool, x, HALF_PRODUCT, products, normed)
        sums = self._buffers.take("deviations", tokens, 1, torch.float32)
        gemm(pool, products, self._ones, out=sums, buffers=self._buffers)
        return scale_columns(pool, sums, self._factor, sums)


class CpuStreamOps:
    """Tables of places are made once, as a recorded step must not allocate."""

    def __init__(self, pool: Pool, buffers: Buffers, num_streams: int):
        self._pool = pool
        self._buffers = buffers
        more = num_streams + 1
        self._each = {sizes: Places.of_each(*sizes) for sizes in ((num_streams, more), (more, num_streams))}
        self._first = {stride: Places.of_first(stride) for stride in (1, num_streams)}

    def deviations(self, size: int, dtype: torch.dtype, *, is_centred: bool) -> Deviations:
        return CpuDeviations(self._pool, self._buffers, size, dtype, is_centred=is_centred)

    def wide(self, table: Table) -> Table:
        assert isinstance(table, PackedTable)
        return table.wide()

    def memory(self, role: str, rows: int, size: int) -> Tensor:
        return self._buffers.take(role, rows, size, torch.float32)

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        out = self._buffers.take("rounded", len(x), x.shape[1], dtype)
        return mix_rows(self._pool, x, None, self._first[_rows_apart(x)], out)

    def mix(self, streams: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        sizes = len(out) // len(weights), len(streams) // len(weights)
        return mix_rows(self._pool, streams, weights, self._each[sizes], out)

    def scale_rows(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = self._buffers.take("scaled rows", len(x), x.shape[1], x.dtype)
        return scale_rows(self._pool, x, factors, self._first[_rows_apart(out)], out)


def _rows_apart(x: Tensor) -> int:
    """The distance of rows, in rows."""
    return 1 if x.is_contiguous() else x.stride(0) // x.shape[1]
