"""A weight matrix in the blocks of a GGUF file."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .dequantize import DEQUANTIZERS

VALUES_AT_ONCE = 1 << 18  # few enough that the float32 temporaries stay in the cache
# Those that the CPU kernels multiply.
PRODUCT_FORMATS = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"),
)
GROUP_INPUTS = 32  # inputs that share a scale of activations: a rank's share is whole groups


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """A matrix in blocks, in the checkpoint's mapped files. Packing reads it once, on all threads of the pool.

    A rank's share of the inputs may begin and end inside a block; the blocks are whole.
    """

    format: str  # one of PRODUCT_FORMATS
    parts: tuple[Tensor, ...]  # stacked, [rows, blocks, bytes] uint8 each
    inputs: int
    skipped: int  # inputs of the first block that are not in the matrix
    dtype: torch.dtype  # of the values, where they are dequantized

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(part) for part in self.parts), self.inputs

    @property
    def nbytes(self) -> int:
        return sum(part.numel() for part in self.parts)

    def dequantized(self) -> Tensor:
        """The values [out, in], rounded to `dtype`."""
        values = torch.empty(self.shape, dtype=self.dtype)
        at = 0
        for part in self.parts:
            step = max(1, VALUES_AT_ONCE // max(1, self.inputs))
            for first in range(0, len(part), step):
                rows = part[first : first + step]
                found = DEQUANTIZERS[self.format](rows.flatten(0, 1)).view(len(rows), -1)
                values[at : at + len(rows)] = found[:, self.skipped : self.skipped + self.inputs]
                at += len(rows)
        return values

    def changed(self, change: Callable[[Tensor], Tensor]) -> "BlockWeight":
        return replace(self, parts=tuple(change(part) for part in self.parts))

    def padded(self, missing: int) -> "BlockWeight":
        """With `missing` more outputs of zeros: a block of zeros has the value zero."""
        first = self.parts[0]
        return replace(self, parts=(*self.parts, first.new_zeros(missing, *first.shape[1:])))


def stacked_blocks(upper: BlockWeight, lower: BlockWeight) -> BlockWeight | None:
    """The two as one matrix; None if they differ in form."""
    if any(getattr(upper, name) != getattr(lower, name) for name in ("format", "inputs", "skipped", "dtype")):
        return None
    return replace(upper, parts=upper.parts + lower.parts)
