"""Matrix products by torch, one row at a time: what keeps the promise on a CPU without our kernels.

A library chooses a kernel, and with it the order of a sum, by the number of rows, and by how an operand lies: MKL's
float32 product of one row differs with the weights' address modulo 16. So each row is copied to the start of memory of
its own and multiplied alone by weights that start a cache line: one shape, one alignment, one kernel. The weights are
read again for every row, which makes prompts and batches slow.
"""

import torch
from torch import Tensor
from torch.nn import functional

ALIGNMENT = 64  # of memory that torch allocates


def aligned(x: Tensor) -> Tensor:
    """`x` in rows one behind the other from the start of a cache line on; a tensor of a mapped file starts anywhere."""
    return x if x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0 else x.clone(memory_format=torch.contiguous_format)


def linear_by_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [rows, in] times `weight` [out, in] transposed, plus `bias` [out]; a row's bits depend on that row alone."""
    weight, out = aligned(weight), torch.empty((len(x), len(weight)), dtype=x.dtype)
    for row in range(len(x)):
        out[row] = functional.linear(x[row : row + 1].clone(), weight, bias)[0]
    return out
