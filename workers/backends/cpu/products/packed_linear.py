"""Linear layers and tables with weights packed for our CPU kernels."""

import torch
from torch import Tensor

from ....checkpoint.packed_weight import PackedWeight
from ....distributed.tensor_parallel import TensorParallelGroup
from ....kernels.cpu.buffers import Buffers
from ....kernels.cpu.gemm import embed_rows, gemm, sum_parts
from ....kernels.cpu.library import Pool


class PackedLinear:
    """A product summed in float32, bias included, and rounded once; the inputs are in `segments`, as in gemm.

    `is_wide`: results are float32 for any operands.
    """

    def __init__(
        self,
        pool: Pool,
        buffers: Buffers,
        weight: PackedWeight,
        bias: Tensor | None = None,
        segments: int = 1,
        *,
        is_wide: bool = False,
    ):
        self.weight = weight
        self.bias = None if bias is None else bias.float()  # [out]
        self._pool = pool
        self._buffers = buffers
        self._segments = segments
        self._is_wide = is_wide

    def __call__(self, x: Tensor) -> Tensor:
        dtype = torch.float32 if self._is_wide else x.dtype
        out = self._buffers.take("product", len(x), self.weight.outputs, dtype)
        return gemm(self._pool, x, self.weight, self.bias, out=out, buffers=self._buffers, segments=self._segments)


class PackedShare:
    """The same product with its segments divided among ranks: float32 sums are exchanged, added and rounded once."""

    def __init__(
        self,
        pool: Pool,
        buffers: Buffers,
        weight: PackedWeight,
        bias: Tensor | None,
        segments: int,
        group: TensorParallelGroup,
        *,
        is_wide: bool = False,
    ):
        self.weight = weight
        self.bias = None if bias is None else bias.float()  # [out], complete on every rank
        self._pool = pool
        self._buffers = buffers
        self._segments = segments  # number of segments of this rank
        self._group = group
        self._is_wide = is_wide

    def __call__(self, x: Tensor) -> Tensor:
        part = self._buffers.take("part", len(x), self.weight.outputs, torch.float32)
        gemm(self._pool, x, self.weight, out=part, buffers=self._buffers, segments=self._segments)
        dtype = torch.float32 if self._is_wide else x.dtype
        out = self._buffers.take("product", len(x), self.weight.outputs, dtype)
        return sum_parts(self._pool, self._group.stack(part), self.bias, out)


class PackedHead(PackedLinear):
    """A product with float32 results for any operands, in memory that no other product uses."""

    def __call__(self, x: Tensor) -> Tensor:
        out = self._buffers.take("logits", len(x), self.weight.outputs, torch.float32)
        return gemm(self._pool, x, self.weight, self.bias, out=out, buffers=self._buffers)


class PackedTable:
    """A lookup table of packed weights."""

    def __init__(
        self,
        pool: Pool,
        buffers: Buffers,
        weight: PackedWeight,
        dtype: torch.dtype,
        multiplier: float = 1.0,
        of: str = "tokens",
    ):
        self.weight = weight
        self.num_rows = weight.outputs
        self._multiplier = multiplier
        self._of = of
        self._pool = pool
        self._buffers = buffers
        self._dtype = dtype

    def rows(self, indices: Tensor) -> Tensor:
        out = self._buffers.take(f"rows of {self._of}", len(indices), self.weight.inputs, self._dtype)
        return embed_rows(self._pool, indices, self.weight, out=out, multiplier=self._multiplier)

    def wide(self) -> "PackedTable":
        """The same table, whose rows are float32."""
        of = f"wide {self._of}"
        return PackedTable(self._pool, self._buffers, self.weight, torch.float32, self._multiplier, of)


class TiedPackedTable(PackedTable, PackedHead):
    """The embedding and the output head, which share one copy."""

    def __init__(self, pool: Pool, buffers: Buffers, weight: PackedWeight, dtype: torch.dtype, multiplier: float = 1.0):
        PackedTable.__init__(self, pool, buffers, weight, dtype, multiplier)
        PackedHead.__init__(self, pool, buffers, weight)
