"""The options of a layer's attention, independent of model families and backends."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How one layer computes its scores: query * key * scale, then the cap, then ALiBi's bias, all in float32."""

    scale: float
    window: int = 0  # positions that a token attends to, itself included; 0: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: no cap
    slopes: Tensor | None = None  # [heads] float32, ALiBi: adds slope * (key's position - query's) to a score
    is_bidirectional: bool = False  # a token also attends to later keys: its whole prompt is one chunk

    def __post_init__(self) -> None:
        assert not (self.window and self.is_bidirectional), "windows are not supported in bidirectional attention"


def alibi_slopes(num_heads: int) -> Tensor:
    """ALiBi's slopes, [num_heads] float32, descending (Press et al., Train Short, Test Long).

    Head i of n (from 1) has the slope 2^(-8 i / n), where n is the largest power of two up to `num_heads`; the other
    heads have every other slope of 2 n heads. Powers are computed in double.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [math.pow(2.0, -8.0 * i / whole) for i in range(1, whole + 1)]
    slopes += [math.pow(2.0, -4.0 * i / whole) for i in range(1, 2 * (num_heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64).float()
