"""Matrix products by torch, one row at a time: deterministic on a CPU without our kernels.

A library chooses its kernel, and so the order of a sum, by the number of rows and by alignment: MKL's float32 product
of one row depends on the weights' address modulo 16. Each row is therefore copied to the start of a cache line and
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
    if len(x) < 2:
        return functional.linear(x.clone(memory_format=torch.contiguous_format), weight, bias)
    width, unit = x.shape[1], ALIGNMENT // x.element_size()
    rows = x.new_empty(len(x), -(-width // unit) * unit)[:, :width].copy_(x)  # each row starts on a cache line
    return torch.cat([functional.linear(rows[i : i + 1], weight, bias) for i in range(len(x))])
