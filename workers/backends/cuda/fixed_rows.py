"""Matrix products by a library whose kernel, and so whose order of additions, depends on the number of rows.

They are done PRODUCT_ROWS rows at a time, always, the last rows beside others that mean nothing. So a row's bits depend
on that row alone, as far as the library gives one shape one kernel in which a row's place does not matter. A decode
step pays nothing: up to about 180 rows (an H200's 790 TFLOP/s over 4.3 TB/s) its time is that of reading the weights.
A long prefill reads them once for each PRODUCT_ROWS rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

PRODUCT_ROWS = 128


class FixedRowsLinear:
    """A Linear of torch's product."""

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
    """[len(like), columns], with room behind it so that a product need not copy it."""
    return like.new_empty((round_up_product_rows(len(like)), columns))[: len(like)]


def whole_rows(x: Tensor, rows: int) -> Tensor:
    """`x` [n, columns] as the first of so many rows; the others hold anything."""
    columns = x.shape[1]
    last = x.storage_offset() + rows * columns
    if x.is_contiguous() and last * x.itemsize <= x.untyped_storage().nbytes():
        return x.as_strided((rows, columns), (columns, 1))
    return functional.pad(x, (0, 0, 0, rows - len(x)))
