"""The gated delta net (arXiv 2412.06464) of Qwen3-Next, Qwen3.5 and OLMo Hybrid."""

from dataclasses import dataclass, replace
from math import prod

import torch

from paged_serve.protocol.errors import ConfigError

from .columns import STATE_BYTES, conv_bytes, state_shape

KEY_MULTIPLE, MAX_KEY_DIM, MAX_WIDTH = 4, 512, 8  # that the kernels know


@dataclass(frozen=True, slots=True)
class GatedDeltaLayer:
    """A projection, a convolution, the gated delta rule, a norm of each head with a gate, and a projection.

    With a `rank` it is Kimi delta attention (arXiv 2510.26692).

    Its state has the layout of Mamba2Layer's. Key heads are divided among ranks, each with the heads that read it.
    """

    heads: int  # of values
    key_heads: int
    key_dim: int
    value_dim: int
    width: int  # tokens that the convolution reads
    norm_eps: float
    max_beta: float = 1.0  # above 1 the state may have negative eigenvalues
    rank: int = 0  # elements from which gates and decays, one for each element of a key, are projected; 0: as above

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

    @property
    def inner_size(self) -> int:
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.inner_size

    def of_rank(self, tp_size: int) -> "GatedDeltaLayer":
        """The sizes of one rank's share."""
        return replace(self, heads=self.heads // tp_size, key_heads=self.key_heads // tp_size)

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        matrices = prod(state_shape(share.heads, self.value_dim, self.key_dim))
        return conv_bytes(self.width, share.channels, dtype.itemsize) + STATE_BYTES * matrices

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        decays = share.heads * (share.key_dim if share.rank else 1)
        return (2 * share.channels + share.heads + decays) * dtype.itemsize

    def uneven(self, tp_size: int) -> str:
        return f"the {self.key_heads} key heads of its gated delta nets" if self.key_heads % tp_size else ""
