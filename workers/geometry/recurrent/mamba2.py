"""The recurrence of Mamba 2 (arXiv 2405.21060), which several hybrid families have too."""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch

from paged_serve.protocol.errors import ConfigError

from .columns import STATE_BYTES, conv_bytes, state_shape

STATE_MULTIPLE, MAX_STATE_SIZE = 8, 512  # that the kernels know
MAX_WIDTH = 8
Gating = Literal["before_norm", "after_norm", "alone"]  # alone: there is no norm


@dataclass(frozen=True, slots=True)
class Mamba2Layer:
    """A projection, a convolution, a scan with one decay per head, a gate, mostly with a norm, and a projection.

    A layer's state is that of the convolution, [width - 1, channels] in the model's dtype, and, from the next multiple
    of ALIGNMENT bytes on, that of the scan (columns.py). Heads are divided among ranks, groups as far as possible.
    """

    heads: int
    head_dim: int
    groups: int  # of heads that share inputs and outputs of the state
    state_size: int  # numbers per element of a head
    width: int  # tokens that the convolution reads
    has_bias: bool  # of both projections
    has_conv_bias: bool
    dt_limits: tuple[float, float]
    gating: Gating = "before_norm"

    def check(self) -> None:
        """Raises ConfigError for sizes that no kernel supports."""
        if self.heads < 1 or self.head_dim < 1 or self.groups < 1 or self.heads % self.groups:
            raise ConfigError(
                f"config.json: {self.heads} Mamba 2 heads of {self.head_dim} elements cannot share {self.groups} groups"
            )
        if self.state_size % STATE_MULTIPLE or not 0 < self.state_size <= MAX_STATE_SIZE:
            raise ConfigError(
                f"config.json: no kernel supports a Mamba 2 state size of {self.state_size}; it must be a multiple of "
                f"{STATE_MULTIPLE} up to {MAX_STATE_SIZE}"
            )
        if not 2 <= self.width <= MAX_WIDTH:
            raise ConfigError(
                f"config.json: no kernel supports a convolution of width {self.width}; it must be 2 to {MAX_WIDTH}"
            )
        if not 0 <= self.dt_limits[0] <= self.dt_limits[1]:
            raise ConfigError(
                f"config.json: time_step_limit={list(self.dt_limits)} must be two ascending numbers from 0 on"
            )

    @property
    def inner_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: inputs of heads, then inputs, then outputs of groups."""
        return self.inner_size + 2 * self.groups * self.state_size

    @property
    def norm_size(self) -> int:
        """Elements that are normalised together."""
        return self.inner_size // self.groups

    def heads_of(self, rank: int, tp_size: int) -> tuple[int, int]:
        share = self.heads // tp_size
        return rank * share, (rank + 1) * share

    def groups_of(self, rank: int, tp_size: int) -> tuple[int, int]:
        """The groups of the rank's heads; several ranks may hold the same one."""
        first = rank * self.groups // tp_size
        return first, first + max(1, self.groups // tp_size)

    def of_rank(self, tp_size: int) -> "Mamba2Layer":
        """The sizes of one rank's share."""
        first, last = self.groups_of(0, tp_size)
        return replace(self, heads=self.heads // tp_size, groups=last - first)

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        matrices = prod(state_shape(share.heads, self.head_dim, self.state_size))
        return conv_bytes(self.width, share.channels, dtype.itemsize) + STATE_BYTES * matrices

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        return (2 * share.channels + share.heads) * dtype.itemsize

    def uneven(self, tp_size: int) -> str:
        if self.heads % tp_size:
            return f"the {self.heads} heads of its Mamba 2 layers"
        return (
            f"the {self.groups} groups of its Mamba 2 layers" if self.groups % tp_size and tp_size % self.groups else ""
        )
