"""Rotary position embedding, with the frequency scalings of published models."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .trigonometry import cosine_and_sine

if TYPE_CHECKING:  # a type only: nothing to import at run time
    from ..geometry.rope_scaling import RopeScaling, Temperature

POSITIONS_AT_ONCE = 2048  # a table grows by multiples of this


class Rotary:
    """The angles by which queries and keys are rotated. Element j of a head pairs with element j + head_dim / 2.

    With partial rotation the last pairs are not rotated: their cosine is 1 and their sine 0. Cosines and sines are
    always computed on the host, so their bits are the same on every machine.
    """

    def __init__(self, scaling: "RopeScaling", head_dim: int, device: str = "cpu"):
        self.head_dim = head_dim
        rotated = scaled_frequencies(scaling, scaling.rotary_dim or head_dim)
        self.frequencies = torch.zeros(head_dim // 2)  # radians per position of each pair, on the host; 0: not rotated
        self.frequencies[: len(rotated)] = -rotated if scaling.is_backwards else rotated
        self.amplitudes = np.ones(head_dim // 2, dtype=np.float32)
        self.amplitudes[: len(rotated)] = attention_factor(scaling)
        self._table = torch.empty((0, head_dim), device=device)
        self._temperature = scaling.temperature
        self._query_scales = torch.empty(0, device=device)

    @property
    def query_scales(self) -> Tensor | None:
        """The factors of rotated queries at the table's positions, [positions] float32; None: no factors."""
        return None if self._temperature is None else self._query_scales

    def table(self, num_positions: int) -> Tensor:
        """Cosines, then sines, of `num_positions` or more: [positions, head_dim] float32. Grows on demand."""
        if num_positions > (held := len(self._table)):
            wanted = -(-max(num_positions, 2 * held) // POSITIONS_AT_ONCE) * POSITIONS_AT_ONCE
            grown = [self._piece(first) for first in range(held, wanted, POSITIONS_AT_ONCE)]
            self._table = torch.cat([self._table, torch.cat(grown).to(self._table.device)])
            if self._temperature is not None:
                self._query_scales = temperatures(self._temperature, wanted).to(self._table.device)
        return self._table

    def _piece(self, first: int) -> Tensor:
        """The table's rows [first, first + POSITIONS_AT_ONCE)."""
        positions = np.arange(first, first + POSITIONS_AT_ONCE, dtype=np.float32)
        both = cosine_and_sine(positions[:, None] * self.frequencies.numpy())
        return torch.from_numpy(np.concatenate([part * self.amplitudes for part in both], axis=1))


def temperatures(temperature: "Temperature", num_positions: int) -> Tensor:
    """The factor of queries by position, [num_positions] float32; with math's log, as torch's differs by machine."""
    levels = torch.div(torch.arange(num_positions) + temperature.first, temperature.floor_scale, rounding_mode="floor")
    factors = [1.0 + temperature.scale * math.log1p(level) for level in range(int(levels[-1]) + 1)]
    return torch.tensor(factors, dtype=torch.float64).float()[levels]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """[tokens, heads, head_dim] -> the same shape, rotated; in float32, rounded once."""
    low, high = x.float().chunk(2, dim=-1)
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rotated_low, rotated_high = rotated.chunk(2, dim=-1)
    rotated_low.copy_((low * cosine).sub_(high * sine))
    rotated_high.copy_((high * cosine).add_(low * sine))
    return rotated


def scaled_frequencies(scaling: "RopeScaling", head_dim: int) -> Tensor:
    """Radians per position of each pair of a head's elements, [head_dim / 2] float32."""
    plain = 1.0 / _powers(scaling.theta, head_dim)
    match scaling.kind:
        case "none":  # no rotation
            return torch.zeros(head_dim // 2)
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "proportional":
            turning = int(scaling.share * head_dim // 2)
            return torch.where(torch.arange(head_dim // 2) < turning, plain, 0.0) / scaling.factor
        case "yarn":
            return _yarn(scaling, head_dim)
        case "longrope":
            factors = torch.tensor(scaling.long_factors if scaling.is_long else scaling.short_factors)
            return 1.0 / (factors * _powers(scaling.theta, head_dim))
        case _:  # "dynamic" scales only past max_position_embeddings, which no request may exceed
            return plain


def _powers(theta: float, head_dim: int) -> Tensor:
    """theta^(2 i / head_dim) of each pair i, [head_dim / 2] float32; with math's pow, as torch's differs by machine."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return torch.tensor([math.pow(theta, exponent) for exponent in exponents.tolist()], dtype=torch.float32)


def _llama3(plain: Tensor, scaling: "RopeScaling") -> Tensor:
    """Low frequencies are divided by the factor, high ones kept, and those in between blended."""
    wavelength = 2 * math.pi / plain
    longest = scaling.original_max_positions / scaling.low_freq_factor
    shortest = scaling.original_max_positions / scaling.high_freq_factor
    blend = (scaling.original_max_positions / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    slow = torch.where(wavelength > longest, plain / scaling.factor, plain)
    between = (1 - blend) * slow / scaling.factor + blend * slow
    return torch.where((wavelength >= shortest) & (wavelength <= longest), between, slow)


def _yarn(scaling: "RopeScaling", head_dim: int) -> Tensor:
    """High frequencies are kept, low ones divided by the factor, with a linear ramp in between."""

    def pair_with_rotations(count: float) -> float:
        """The index, a fraction, of the pair that makes `count` rotations within the original context."""
        span = scaling.original_max_positions / (count * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(scaling.theta))

    first, last = pair_with_rotations(scaling.beta_fast), pair_with_rotations(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    powers = _powers(scaling.theta, head_dim)
    kept, divided = 1.0 / powers, 1.0 / (scaling.factor * powers)
    keep = 1 - ramp
    return divided * (1 - keep) + kept * keep


def attention_factor(scaling: "RopeScaling") -> float:
    """The factor of cosines and sines: yarn and longrope sharpen attention as the context grows."""
    if scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.kind == "longrope":
        lengths = math.log(max(scaling.factor, 1.0)) / math.log(scaling.original_max_positions)
        return math.sqrt(1.0 + lengths)

    def magnitude(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
