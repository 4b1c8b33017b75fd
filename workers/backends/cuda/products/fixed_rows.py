"""Matrix products by a library that chooses its kernel, and so the order of additions, by the number of rows.

Products always have PRODUCT_ROWS rows; the last one is padded with arbitrary rows. A row's bits then depend only on
that row, provided that the library uses one kernel per shape and that the position of a row does not matter in it.
Decode steps are not slower: up to about 180 rows (an H200's 790 TFLOP/s over 4.3 TB/s) they take the time of reading
the weights. A long prefill reads the weights once for each PRODUCT_ROWS rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

PRODUCT_ROWS = 128


class FixedRowsLinear:
    """A Linear by torch, PRODUCT_ROWS rows at a time."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.weight = weight  # [out, in]
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        rows = round_up_product_rows(len(x))
        wide = whole_rows(x, rows)
        out = torch.empty((rows, self.weight.shape[0]), dtype=x.dtype, device=x.device)
        for start in range(0, rows, PRODUCT_ROWS):
            part = slice(start, start + PRODUCT_ROWS)
            if self.bias is None:
                torch.mm(wide[part], self.weight.t(), out=out[part])
            else:
                torch.addmm(self.bias, wide[part], self.weight.t(), out=out[part])
        return out[: len(x)]


def round_up_product_rows(num_rows: int) -> int:
    return -(-num_rows // PRODUCT_ROWS) * PRODUCT_ROWS


def empty_rows(like: Tensor, columns: int) -> Tensor:
    """An empty tensor [len(like), columns] with additional rows in memory, so that padding needs no copy."""
    return like.new_empty((round_up_product_rows(len(like)), columns))[: len(like)]


def whole_rows(x: Tensor, rows: int) -> Tensor:
    """`x` [n, columns] padded to `rows` rows with arbitrary values."""
    columns = x.shape[1]
    last = x.storage_offset() + rows * columns
    if x.is_contiguous() and last * x.itemsize <= x.untyped_storage().nbytes():
        return x.as_strided((rows, columns), (columns, 1))
    return functional.pad(x, (0, 0, 0, rows - len(x)))
