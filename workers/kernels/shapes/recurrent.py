"""What the kernels of recurrent layers need of their tensors on every platform: shapes, dtypes and strides.

States of scans are float32, weights contiguous float32; rows of a step's tensors may be strided.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...geometry.recurrent.columns import state_shape
from ...kv.state_rows import StateRows


def state_fields(rows: StateRows, states: Tensor) -> tuple[int, ...]:
    """The fields of the structs of rows and states; `states` [blocks, ...] has contiguous blocks, at any distance."""
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


def check_convolution(
    states: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, out: Tensor, factors: Sequence[Tensor | None]
) -> None:
    width, channels = weight.shape
    assert x.shape[1] == channels, x.shape
    _check_weights((weight,), (width, channels))
    assert bias is None or (bias.dtype == torch.float32 and bias.shape == (channels,))
    assert states.shape[1:] == (width - 1, channels), states.shape
    assert states.dtype == x.dtype
    assert out.shape == x.shape
    _check_tokens((x, out))
    for each in factors:
        assert each is None or (each.dtype == x.dtype and each.shape == x.shape)
        assert each is None or each.stride() == x.stride()


def check_mamba1(
    states: Tensor, x: Tensor, dt: Tensor, b_and_c: Tensor, per_channel: Sequence[Tensor], out: Tensor
) -> None:
    channels, depth = x.shape[1], b_and_c.shape[1] // 2
    exponents, *vectors = per_channel
    assert b_and_c.shape[1] == 2 * depth, b_and_c.shape
    assert dt.shape == out.shape == x.shape, (dt.shape, out.shape)
    _check_states(states, 1, channels, depth)
    _check_weights((exponents,), state_shape(1, channels, depth))
    _check_weights(vectors, (channels,))
    _check_tokens((x, dt, b_and_c, out))


def check_norm_parts(x: Tensor, weight: Tensor | None, sizes: tuple[int, int], out: Tensor) -> None:
    steps, state_size = sizes
    assert x.shape == out.shape == (len(x), steps + 2 * state_size), x.shape
    _check_tokens((x, out))
    _check_weights(() if weight is None else (weight,), x.shape[1:])


def check_mamba2(
    states: Tensor, x: Tensor, dt: Tensor, per_head: Sequence[Tensor], sizes: tuple[int, int, int], out: Tensor
) -> None:
    heads, (head_dim, groups, depth) = dt.shape[1], sizes
    assert heads % groups == 0, (heads, groups)
    assert x.shape[1] == heads * head_dim + 2 * groups * depth, x.shape
    assert out.shape[1] == heads * head_dim, out.shape
    _check_states(states, heads, head_dim, depth)
    _check_weights(per_head, (heads,))
    _check_tokens((x, dt, out))


def check_gated_delta(
    states: Tensor,
    x: Tensor,
    gates: tuple[Tensor, Tensor],
    per_head: Sequence[Tensor],
    sizes: tuple[int, int, int],
    out: Tensor,
) -> None:
    heads, (key_heads, key_dim, value_dim), (a, dt_bias) = gates[0].shape[1], sizes, per_head
    assert heads % key_heads == 0, (heads, key_heads)
    assert gates[1].shape[1] in (heads, heads * key_dim), gates[1].shape
    assert x.shape[1] == 2 * key_heads * key_dim + heads * value_dim, x.shape
    assert out.shape[1] == heads * value_dim, out.shape
    _check_states(states, heads, value_dim, key_dim)
    _check_weights((a,), (heads,))
    _check_weights((dt_bias,), gates[1].shape[1:])
    _check_tokens((x, *gates, out))


def check_gated_norm(x: Tensor, gate: Tensor, weight: Tensor, group_size: int, out: Tensor) -> None:
    assert x.shape[1] % group_size == 0, (x.shape, group_size)
    _check_weights((weight,), x.shape[1:])
    check_gate(x, gate, out)


def check_gate(x: Tensor, gate: Tensor, out: Tensor) -> None:
    assert gate.shape == out.shape == x.shape
    _check_tokens((x, gate, out))


def _check_states(states: Tensor, heads: int, outputs: int, depth: int) -> None:
    """`depth`: state numbers of each of a head's outputs."""
    assert states.dtype == torch.float32, states.dtype
    assert states.shape[1:] == state_shape(heads, outputs, depth), states.shape


def _check_tokens(tensors: Sequence[Tensor]) -> None:
    for each in tensors:
        assert each.dtype == tensors[0].dtype, each.dtype
        assert len(each) == len(tensors[0]), each.shape
        assert each.stride(1) == 1, each.stride()


def _check_weights(weights: Sequence[Tensor], shape: Sequence[int]) -> None:
    for each in weights:
        assert each.dtype == torch.float32, each.dtype
        assert each.shape == tuple(shape), each.shape
        assert each.is_contiguous(), each.stride()
