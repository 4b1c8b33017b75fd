"""The gated delta net (arXiv 2412.06464) of Qwen3-Next, Qwen3.5 and OLMo Hybrid."""

from dataclasses import dataclass, replace
from math import prod

import torch

from paged_serve.protocol.errors import ConfigError

from .columns import STATE_BYTES, conv_bytes, state_shape

KEY_MULTIPLE, MAX_KEY_DIM, MAX_WIDTH = 4, 512, 8  # that the kernels know
MAX_BOUND = 80.0  # its exponential is a normal number


@dataclass(frozen=True, slots=True)
class GatedDeltaLayer:
    """A projection, a convolution, the gated delta rule, a norm of each head with a gate, and a projection.

    If elements of keys have decays, it is Kimi delta attention (arXiv 2510.26692).

    Its state has the layout of Mamba2Layer's. Key heads are divided among ranks, each with the heads that read it.
    """

    heads: int  # of values
    key_heads: int
    key_dim: int
    value_dim: int
    width: int  # tokens that the convolution reads
    norm_eps: float
    max_beta: float = 1.0  # above 1 the state may have negative eigenvalues
    has_decays_of_elements: bool = False  # one for each element of a key; otherwise one for each head
    rank: int = 0  # elements from which gates and decays are projected; 0: directly
    lower_bound: float = 0.0  # of the logarithm of a decay; 0: there is none

    def check(self) -> None:
        """Raises ConfigError for sizes that no kernel supports."""
        if self.key_heads < 1 or self.heads < 1 or self.heads % self.key_heads:
            raise ConfigError(
                f"config.json: linear_num_value_heads={self.heads} cannot share linear_num_key_heads={self.key_heads}"
            )
        if self.key_dim % KEY_MULTIPLE or not 0 < self.key_dim <= MAX_KEY_DIM:
            raise ConfigError(
                f"config.json: no kernel supports linear_key_head_dim={self.key_dim}; it must be a multiple of "
                f"{KEY_MULTIPLE} up to {MAX_KEY_DIM}"
            )
        if self.value_dim < 1:
            raise ConfigError(f"config.json: linear_value_head_dim={self.value_dim} must be at least 1")
        if not 2 <= self.width <= MAX_WIDTH:
            raise ConfigError(
                f"config.json: no kernel supports linear_conv_kernel_dim={self.width}; it must be 2 to {MAX_WIDTH}"
            )
        if not -MAX_BOUND <= self.lower_bound <= 0:
            raise ConfigError(f"config.json: kda_lower_bound={self.lower_bound:g} must be from {-MAX_BOUND:g} to 0")

    @property
    def inner_size(self) -> int:
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.inner_size

    @property
    def decays(self) -> int:
        """Of all heads."""
        return self.heads * (self.key_dim if self.has_decays_of_elements else 1)

    def of_rank(self, tp_size: int) -> "GatedDeltaLayer":
        """The sizes of one rank's share."""
        return replace(self, heads=self.heads // tp_size, key_heads=self.key_heads // tp_size)

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        matrices = prod(state_shape(share.heads, self.value_dim, self.key_dim))
        return conv_bytes(self.width, share.channels, dtype.itemsize) + STATE_BYTES * matrices

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        return (2 * share.channels + share.heads + share.decays) * dtype.itemsize

    def uneven(self, tp_size: int) -> str:
        return f"the {self.key_heads} key heads of its gated delta nets" if self.key_heads % tp_size else ""
