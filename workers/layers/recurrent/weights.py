"""The weights of the operations of recurrent layers, as one rank holds them."""

from dataclasses import dataclass

from torch import Tensor

from ...checkpoint.recurrent.columns import state_shape


@dataclass(frozen=True, slots=True, eq=False)
class CausalConv:
    """A convolution of each channel over the last `width` positions."""

    weight: Tensor  # [width, channels] float32, the oldest position first
    bias: Tensor | None  # [channels] float32
    activates: bool  # by silu

    @property
    def width(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Mamba2:
    """The recurrence of Mamba 2: heads of `head_dim` elements with states of `state_size` numbers per element.

    decay = exp(dt * a), dt = softplus(dt + dt_bias) within the limits; head h reads inputs and outputs of its group.
    """

    a: Tensor  # [heads] float32, negative
    d: Tensor  # [heads] float32
    dt_bias: Tensor  # [heads] float32
    head_dim: int
    groups: int
    state_size: int
    dt_limits: tuple[float, float]

    @property
    def heads(self) -> int:
        return len(self.a)

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        return state_shape(self.heads, self.head_dim, self.state_size)


@dataclass(frozen=True, slots=True, eq=False)
class GatedDelta:
    """The gated delta rule: decay = exp(a * softplus(alpha + dt_bias)); several heads may share a query and a key."""

    a: Tensor  # [heads] float32, negative
    dt_bias: Tensor  # [heads] float32
    key_heads: int
    key_dim: int
    value_dim: int
    eps: float  # of the norms of queries and keys

    @property
    def heads(self) -> int:
        return len(self.a)

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        return state_shape(self.heads, self.value_dim, self.key_dim)


@dataclass(frozen=True, slots=True, eq=False)
class GatedNorm:
    """An RMS norm of each group of a vector, multiplied by silu(gate) before it, or after it if `gates_last`."""

    weight: Tensor  # [size] float32
    group_size: int
    eps: float
    gates_last: bool = False
