"""Rotary position embedding, with the stretchings of its frequencies that released models use."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:  # the models, which are made of layers, import this
    from ..models.geometry import RopeScaling

POSITIONS_AT_ONCE = 2048  # by which a table grows


class Rotary:
    """Turns queries and keys by angles that grow with position; halves of a head are the pairs' two sides."""

    def __init__(self, scaling: "RopeScaling", head_dim: int, device: str = "cpu"):
        self.frequencies = scaled_frequencies(scaling, head_dim).to(device)  # [head_dim / 2] float32
        self.amplitude = attention_factor(scaling)
        self._table = torch.empty((0, head_dim), device=device)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of [tokens] positions, each [tokens, 1, head_dim / 2] float32; once per step."""
        angle = (positions.float().unsqueeze(1) * self.frequencies).unsqueeze(1)
        cosine, sine = angle.cos(), angle.sin()
        if self.amplitude != 1.0:
            cosine, sine = cosine * self.amplitude, sine * self.amplitude
        return cosine, sine

    def table(self, num_positions: int) -> Tensor:
        """Cosines, then sines, of at least the first `num_positions`: [positions, head_dim] float32. Grows as asked."""
        if num_positions > len(self._table):
            wanted = max(num_positions, 2 * len(self._table))
            grown = torch.arange(-(-wanted // POSITIONS_AT_ONCE) * POSITIONS_AT_ONCE, device=self._table.device)
            self._table = torch.cat(self.angles(grown), 2).squeeze(1)
        return self._table


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """[tokens, heads, head_dim] -> the same, turned; in float32, rounded once."""
    low, high = x.float().chunk(2, dim=-1)
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    turned_low, turned_high = turned.chunk(2, dim=-1)
    turned_low.copy_((low * cosine).sub_(high * sine))
    turned_high.copy_((high * cosine).add_(low * sine))
    return turned


def scaled_frequencies(scaling: "RopeScaling", head_dim: int) -> Tensor:
    """Radians per position of each pair of a head's elements, [head_dim / 2] float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (scaling.theta**exponents)
    match scaling.kind:
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "yarn":
            return _yarn(scaling, head_dim)
        case _:  # "dynamic" stretches only past max_position_embeddings, where no request is let
            return plain


def _llama3(plain: Tensor, scaling: "RopeScaling") -> Tensor:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
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
    """A ramp over the pairs: fast ones are kept, slow ones divided by the factor."""

    def pair_that_turns(times: float) -> float:
        span = scaling.original_max_positions / (times * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(scaling.theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    powers = scaling.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    kept, divided = 1.0 / powers, 1.0 / (scaling.factor * powers)
    keep = 1 - ramp
    return divided * (1 - keep) + kept * keep


def attention_factor(scaling: "RopeScaling") -> float:
    """What cosine and sine are multiplied by: yarn sharpens attention as the context grows."""
    if scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
