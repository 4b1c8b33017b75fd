"""How a layer's attention weighs what it sees, in our own words."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How one layer's scores come about: query * key * scale, then the cap, then what ALiBi adds, all in float32."""

    scale: float
    window: int = 0  # positions that a token sees, itself included; 0: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay
    slopes: Tensor | None = None  # [heads] float32, ALiBi: a score gains slope * (key's position - query's)
    is_bidirectional: bool = False  # a token also sees the keys after its own: its whole prompt is one chunk

    def __post_init__(self) -> None:
        assert not (self.window and self.is_bidirectional), "a window ends at its token"


def alibi_slopes(num_heads: int) -> Tensor:
    """[num_heads] float32, falling: 2^(-8 i / n) of the i-th of n heads (Press et al., Train Short, Test Long).

    n is a power of two; heads beyond the largest take every other slope of twice as many. Powers are in double.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [math.pow(2.0, -8.0 * i / whole) for i in range(1, whole + 1)]
    slopes += [math.pow(2.0, -4.0 * i / whole) for i in range(1, 2 * (num_heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64).float()
