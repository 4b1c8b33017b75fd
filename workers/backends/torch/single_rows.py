"""Matrix products by torch, one row at a time: deterministic on a CPU without our kernels.

A library chooses its kernel, and so the order of a sum, by the number of rows and by alignment: MKL's float32 product
of one row depends on the weights' address modulo 16. Each row is therefore copied to newly allocated memory and
multiplied alone by weights that start on a cache line, so shape, alignment and kernel are always the same. The weights
are read again for every row, which makes prompts and batches slow.
"""

import torch
from torch import Tensor
from torch.nn import functional

ALIGNMENT = 64  # bytes, of memory that torch allocates


def aligned(x: Tensor) -> Tensor:
    """`x`, contiguous and starting on a cache line; a tensor in a mapped file may start anywhere."""
    return x if x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0 else x.clone(memory_format=torch.contiguous_format)


def linear_by_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [rows, in] times `weight` [out, in] transposed, plus `bias` [out]; a row's bits depend only on that row."""
    weight = aligned(weight)
    rows = range(max(1, len(x)))  # without rows, one of no rows
    return torch.cat([functional.linear(x[row : row + 1].clone(), weight, bias) for row in rows])
