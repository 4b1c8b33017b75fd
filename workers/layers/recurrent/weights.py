"""The weights of the operations of recurrent layers, as one rank holds them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CausalConv:
    """A convolution of each channel over the last `width` positions."""

    weight: Tensor  # [width, channels] float32, the oldest position first
    bias: Tensor | None  # [channels] float32
    activates: bool  # by silu

    @property
    def width(self) -> int:
        return self.weight.shape[0]
