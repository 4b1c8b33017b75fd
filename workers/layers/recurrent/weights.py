"""The weights of the operations of recurrent layers, as one rank holds them."""

import math
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import pad

from ...geometry.recurrent.columns import LANES, state_shape

LOG2_E = math.log2(math.e)


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
class Mamba1:
    """The selective scan of Mamba 1: each number of a channel's state has its own decay.

    decay = exp(dt * a), dt = softplus(dt + dt_bias).
    """

    a: Tensor  # [channels, state_size] float32, negative
    d: Tensor  # [channels] float32
    dt_bias: Tensor  # [channels] float32
    exponents: Tensor = field(init=False)  # a * log2(e) as the states lie, zero-padded

    def __post_init__(self) -> None:
        padded = pad(self.a * LOG2_E, (0, 0, 0, -self.channels % LANES))
        columns = padded.view(-1, LANES, self.state_size).transpose(1, 2).contiguous()
        object.__setattr__(self, "exponents", columns.unsqueeze(0))

    @property
    def channels(self) -> int:
        return self.a.shape[0]

    @property
    def state_size(self) -> int:
        return self.a.shape[1]

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        return state_shape(1, self.channels, self.state_size)


@dataclass(frozen=True, slots=True, eq=False)
class PartNorms:
    """RMS norms of the three parts of a projection of Mamba 1: steps of low rank, b and c."""

    steps: int  # elements
    state_size: int  # elements of b, and of c
    weight: Tensor | None  # [steps + 2 * state_size] float32; None: no norms
    eps: float


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
    """The gated delta rule: decay = exp(a * softplus(alpha + dt_bias)); several heads may share a query and a key.

    A head has one decay, or one for each element of a key. With a lower bound of logarithms, decay =
    exp(lower_bound * sigmoid(-a * (alpha + dt_bias))).
    """

    a: Tensor  # [heads] float32, negative
    dt_bias: Tensor  # [heads * decays] float32
    key_heads: int
    key_dim: int
    value_dim: int
    eps: float  # of the norms of queries and keys
    max_beta: float = 1.0
    lower_bound: float = 0.0  # 0: none

    @property
    def heads(self) -> int:
        return len(self.a)

    @property
    def decays(self) -> int:
        """Of a head."""
        return len(self.dt_bias) // len(self.a)

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        return state_shape(self.heads, self.value_dim, self.key_dim)


@dataclass(frozen=True, slots=True, eq=False)
class GatedNorm:
    """An RMS norm of each group of a vector, multiplied by silu(gate) before it, or after it if `gates_last`.

    `sigmoid_gates`, with `gates_last`: by sigmoid(gate) instead.
    """

    weight: Tensor  # [size] float32
    group_size: int
    eps: float
    gates_last: bool = False
    sigmoid_gates: bool = False
