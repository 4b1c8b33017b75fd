"""What all kernels of recurrent layers know of a step's rows and of a layer's states."""

import torch
from torch import Tensor

from ....kv.state_rows import StateRows


def state_fields(rows: StateRows, states: Tensor) -> tuple[int, ...]:
    """The fields of StateRows in csrc/cpu; `states` [blocks, ...] has contiguous blocks, at any distance."""
    tables, starts, kv_lens, stored_lens = rows.block_tables, rows.row_starts, rows.kv_lens, rows.stored_lens
    for each in (tables, starts, kv_lens, *(() if stored_lens is None else (stored_lens,))):
        assert each.dtype == torch.int32, each.dtype
    assert tables.stride(1) == starts.stride(0) == kv_lens.stride(0) == 1
    assert len(tables) == len(starts) - 1 == len(kv_lens)
    assert states[0].is_contiguous(), states.stride()
    assert stored_lens is None or (stored_lens.is_contiguous() and stored_lens.shape == kv_lens.shape)
    stored = 0 if stored_lens is None else stored_lens.data_ptr()
    pointers = starts.data_ptr(), kv_lens.data_ptr(), stored, tables.data_ptr(), states.data_ptr()
    return *pointers, states.stride(0) * states.itemsize, len(kv_lens), tables.stride(0), rows.block_size
