"""The short convolutions of LFM2."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A causal convolution of each channel over the last `width` tokens, between two gates (LFM2).

    Its state is the convolution's last width - 1 inputs, [width - 1, channels] in the model's dtype, the oldest first.
    """

    channels: int
    width: int  # tokens
    has_bias: bool = False  # of both projections and of the convolution

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        return (self.width - 1) * (self.channels // tp_size) * dtype.itemsize

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        return 2 * (self.channels // tp_size) * dtype.itemsize

    def uneven(self, tp_size: int) -> str:
        return f"the {self.channels} channels of its convolutions" if self.channels % tp_size else ""
