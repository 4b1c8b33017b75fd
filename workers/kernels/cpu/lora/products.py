"""What adapters add to the rows of a step: y += scale * B (A x). A row's bits depend only on that row."""

import torch
from torch import Tensor

from ....checkpoint.adapters.deltas import Deltas
from ..library import Pool
from ..parameters import DTYPE_CODES, packer, pointer
from ..structs.lora import LoraParams

LORA = packer(LoraParams)


def lora_announce(pool: Pool, deltas: Deltas, groups: Tensor, x: Tensor, sums: Tensor, early: Tensor | None) -> None:
    """Let the next product compute some of lora_shrink and of lora_expand, which must follow it with the same tensors.

    `early` [rows, outputs] float32 is for B (A x); None if lora_expand will add more than one share.
    """
    _check_inputs(deltas, x, sums)
    _run(pool, "lora_announce", deltas, groups, sums.unsqueeze(0), x.data_ptr(), x.stride(0), early=early)


def lora_shrink(pool: Pool, deltas: Deltas, groups: Tensor, x: Tensor, sums: Tensor) -> Tensor:
    """Set the grouped rows of `sums` [rows, width] float32 to A x, of `x` [rows, inputs], whose rows may be strided.

    `groups` [1 + 4 * rows] i32 is AdapterGroups.table.
    """
    _check_inputs(deltas, x, sums)
    _run(pool, "lora_shrink", deltas, groups, sums.unsqueeze(0), x.data_ptr(), x.stride(0))
    return sums


def lora_look_up(pool: Pool, deltas: Deltas, groups: Tensor, ids: Tensor, sums: Tensor) -> Tensor:
    """The same, of a table's rows `ids` [rows] i64; an id outside the table gives zeros."""
    assert ids.dtype == torch.int64, ids.dtype
    assert ids.shape == (len(sums),), ids.shape
    assert ids.is_contiguous()
    assert deltas.shape.is_table
    _run(pool, "lora_look_up", deltas, groups, sums.unsqueeze(0), ids.data_ptr(), 0)
    return sums


def lora_expand(pool: Pool, deltas: Deltas, groups: Tensor, shares: Tensor, y: Tensor, early: Tensor | None) -> None:
    """Add scale * B h to the grouped rows of `y` [rows, outputs], in place; h is the sum of `shares`.

    `shares` [count, rows, width] float32 are added as in sum_parts; rows of `y` may be strided.
    """
    assert y.shape == (shares.shape[1], sum(deltas.shape.outputs)), (y.shape, deltas.shape)
    assert y.stride(1) == 1, y.stride()
    _run(pool, "lora_expand", deltas, groups, shares, 0, 0, y, early)


def _check_inputs(deltas: Deltas, x: Tensor, sums: Tensor) -> None:
    assert x.dtype == deltas.dtype, (x.dtype, deltas.dtype)
    assert x.shape == (len(sums), deltas.shape.inputs), (x.shape, deltas.shape)
    assert x.stride(1) == 1, x.stride()


def _run(
    pool: Pool,
    kernel: str,
    deltas: Deltas,
    groups: Tensor,
    shares: Tensor,
    x: int,
    x_stride: int,
    y: Tensor | None = None,
    early: Tensor | None = None,
) -> None:
    count, rows, width = shares.shape
    assert width == deltas.width, (width, deltas.width)
    assert shares.dtype == torch.float32, shares.dtype
    assert shares.is_contiguous()
    assert groups.dtype == torch.int32, groups.dtype
    assert groups.shape == (1 + 4 * rows,), (groups.shape, rows)
    shape = deltas.shape
    if early is not None:
        assert early.shape == (rows, sum(shape.outputs)), (early.shape, shape)
        assert early.dtype == torch.float32, early.dtype
        assert early.is_contiguous()
    into = (0, 0) if y is None else (y.data_ptr(), y.stride(0))
    temporary = shares.data_ptr(), pointer(early)
    pointers = into[0], x, *temporary, groups.data_ptr(), deltas.table.data_ptr(), deltas.starts.data_ptr()
    sizes = rows, len(shape.outputs), shape.inputs, deltas.max_rank, shape.segments, count
    dtypes = DTYPE_CODES[deltas.dtype], DTYPE_CODES[deltas.dtype if y is None else y.dtype]
    pool.functions[kernel](pool.handle, LORA(*pointers, x_stride, into[1], *sizes, *dtypes))
