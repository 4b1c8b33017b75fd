"""How a layer's attention weighs what it sees, in our own words."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a token sees; at most one of the three is set."""

    window: int = 0  # positions that it sees, itself included; 0: all
    attention_chunk: int = 0  # it sees positions from the last multiple of this on; 0: from any
    is_bidirectional: bool = False  # it also sees the keys after its own: its whole prompt is one chunk

    def first_seen(self, position: int) -> int:
        """The first position that the token at `position` sees."""
        if self.attention_chunk:
            return position // self.attention_chunk * self.attention_chunk
        return max(0, position - self.window + 1) if self.window else 0

    def first_seen_of(self, positions: Tensor) -> Tensor:
        """The same for `positions` of integers, in their shape."""
        if self.attention_chunk:
            return torch.div(positions, self.attention_chunk, rounding_mode="floor") * self.attention_chunk
        return (positions - self.window + 1).clamp(min=0) if self.window else torch.zeros_like(positions)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How one layer's scores come about: query * key * scale, then the cap, then what ALiBi adds, all in float32."""

    scale: float
    window: int = 0  # as in Sight
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay
    slopes: Tensor | None = None  # [heads] float32, ALiBi: a score gains slope * (key's position - query's)
    is_bidirectional: bool = False
    attention_chunk: int = 0
    sinks: Tensor | None = None  # [heads] float32, each one more score, of a key without a value; added last

    def __post_init__(self) -> None:
        kinds = bool(self.window), self.is_bidirectional, bool(self.attention_chunk)
        assert sum(kinds) <= 1, "windows and attention chunks end at their token, and exclude each other"

    @property
    def sight(self) -> Sight:
        return Sight(self.window, self.attention_chunk, self.is_bidirectional)


def alibi_slopes(num_heads: int) -> Tensor:
    """[num_heads] float32, falling: 2^(-8 i / n) of the i-th of n heads (Press et al., Train Short, Test Long).

    n is a power of two; heads beyond the largest take every other slope of twice as many. Powers are in double.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [math.pow(2.0, -8.0 * i / whole) for i in range(1, whole + 1)]
    slopes += [math.pow(2.0, -4.0 * i / whole) for i in range(1, 2 * (num_heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64).float()
