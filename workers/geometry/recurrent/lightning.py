"""Lightning attention (arXiv 2405.17381): linear attention whose heads have constant decays."""

from dataclasses import dataclass, replace
from math import prod

import torch

from paged_serve.protocol.errors import ConfigError

from .columns import STATE_BYTES, state_shape

DIM_MULTIPLE, MAX_DIM = 8, 512  # that the kernels know


@dataclass(frozen=True, slots=True)
class LightningLayer:
    """A projection with silu, a scan with one constant decay per head, a norm of all heads with a gate, a projection.

    The state of a head is the sum of the products of its keys and values, which decays from token to token; an output
    is the query times the state. States lie as those of Mamba 2's scan; there is no convolution. Heads are divided
    among ranks.
    """

    heads: int
    head_dim: int  # of queries, keys and values
    rate: float  # of the layer: a head's decay is exp(-rate * slope), with the slopes of ALiBi
    norm_eps: float = 1e-6  # config.json has no field for it

    def check(self) -> None:
        """Raises ConfigError for sizes that no kernel supports."""
        if self.heads < 1 or self.heads & (self.heads - 1):  # engines disagree about the decays of other numbers
            raise ConfigError(
                f"config.json: num_attention_heads={self.heads} must be a power of two, for lightning attention"
            )
        if self.head_dim % DIM_MULTIPLE or not 0 < self.head_dim <= MAX_DIM:
            raise ConfigError(
                f"config.json: no kernel supports lightning attention with head_dim={self.head_dim}; it must be a "
                f"multiple of {DIM_MULTIPLE} up to {MAX_DIM}"
            )

    @property
    def inner_size(self) -> int:
        return self.heads * self.head_dim

    def of_rank(self, tp_size: int) -> "LightningLayer":
        """The sizes of one rank's share."""
        return replace(self, heads=self.heads // tp_size)

    def state_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        return STATE_BYTES * prod(state_shape(self.heads // tp_size, self.head_dim, self.head_dim))

    def draft_bytes(self, tp_size: int, dtype: torch.dtype) -> int:
        share = self.of_rank(tp_size)
        return (3 * share.inner_size + share.heads) * dtype.itemsize

    def uneven(self, tp_size: int) -> str:
        return f"the {self.heads} heads of its lightning attention" if self.heads % tp_size else ""
