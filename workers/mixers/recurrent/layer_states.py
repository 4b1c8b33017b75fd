"""The two states of a recurrent layer: of its convolution, and of its scan."""

import torch
from torch import Tensor

from ...geometry.recurrent.columns import conv_bytes


def layer_states(states: Tensor, width: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The convolution's last inputs, [blocks, width - 1, channels] in `dtype`, and the rest, [blocks, n] float32, of
    `states` [blocks, bytes] uint8."""
    last_inputs = states[:, : (width - 1) * channels * dtype.itemsize].view(dtype).view(-1, width - 1, channels)
    return last_inputs, states[:, conv_bytes(width, channels, dtype.itemsize) :].view(torch.float32)
