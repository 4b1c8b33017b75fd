"""The selective state spaces of Mamba 1 (arXiv 2312.00752), which FalconMamba and Jamba have too."""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch

from paged_serve.protocol.errors import ConfigError

from .columns import STATE_BYTES, conv_bytes, state_shape

STATE_MULTIPLE, MAX_STATE_SIZE = 8, 512  # that the kernels know
MAX_WIDTH = 8

PartNormKind = Literal["none", "plain", "weighted"]


@dataclass(frozen=True, slots=True)
class Mamba1Layer:
    """Two projections to x and its gates, a convolution, a projection to steps of low rank, b and c, a projection from
    these steps to those of all channels, a scan with a decay for each number of the state, and a projection.

    Its state has the layout of Mamba2Layer's, with all channels as one head. Channels are divided among ranks.
    """

    channels: int
    state_size: int  # numbers per channel
    step_rank: int  # elements from which the steps of all channels are projected
    width: int  # tokens that the convolution reads
    has_bias: bool  # of the first and the last projection
    has_conv_bias: bool
    part_norms: PartNormKind  # RMS norms of the steps of low rank, of b and of c
    norm_eps: float

    def check(self) -> None:
        """Raises ConfigError for sizes that no kernel supports."""
        if self.channels < 1:
            raise ConfigError(f"config.json: intermediate_size={self.channels} must be at least 1")
        if self.state_size % STATE_MULTIPLE or not 0 < self.state_size <= MAX_STATE_SIZE:
            raise ConfigError(
                f"config.json: no kernel supports a Mamba state size of {self.state_size}; it must be a multiple of "
                f"{STATE_MULTIPLE} up to {MAX_STATE_SIZE}"
            )
        if not 1 <= self.step_rank <= self.channels:
            raise ConfigError(
                f"config.json: the rank of a Mamba layer's time steps, {self.step_rank}, must be from 1 to its "
                f"{self.channels} channels"
            )
        if not 2 <= self.width <= MAX_WIDTH:
            raise ConfigError(
                f"config.json: no kernel supports a convolution of width {self.width}; it must be 2 to {MAX_WIDTH}"
            )
        if not 0 <= self.norm_eps < 1:
            raise ConfigError(f"config.json: mixer_rms_eps={self.norm_eps:g} must be at least 0 and less than 1")

    @property
    def parts_size(self) -> int:
        """Elements from which a token's steps, b and c come."""
        return self.step_rank + 2 * self.state_size

    def of_rank(self, tp_size: int) -> "Mamba1Layer":
        """The sizes of one rank's share."""
        return replace(self, channels=self.channels // tp_size)

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        numbers = prod(state_shape(1, share.channels, self.state_size))
        return conv_bytes(self.width, share.channels, dtype.itemsize) + STATE_BYTES * numbers

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        return (3 * self.of_rank(tp_size).channels + 2 * self.state_size) * dtype.itemsize

    def uneven(self, tp_size: int) -> str:
        return f"the {self.channels} channels of its Mamba layers" if self.channels % tp_size else ""
