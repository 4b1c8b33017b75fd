"""How rotary frequencies and rotated queries depend on positions."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
Growth = Annotated[float, Meta(ge=0, le=100)]  # of a scale with the context; 1 or less in published models


@dataclass(frozen=True, slots=True)
class Temperature:
    """Rotated queries are multiplied by 1 + scale * log(1 + floor((position + first) / floor_scale))."""

    scale: float
    floor_scale: Annotated[int, Meta(ge=1)]
    first: Literal[0, 1] = 1  # the number of the first position


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are scaled beyond the model's original context length."""

    kind: str  # "default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"; "none": no rotation
    theta: Annotated[float, Meta(gt=1)] = 10000.0
    factor: Positive = 1.0
    original_max_positions: Annotated[int, Meta(ge=1)] = 1
    low_freq_factor: Positive = 1.0  # llama3
    high_freq_factor: Positive = 4.0  # llama3
    beta_fast: Positive = 32.0  # yarn
    beta_slow: Positive = 1.0  # yarn
    attention_factor: float | None = None  # yarn, longrope; None: derived from `factor`
    mscale: Growth | None = None  # yarn
    mscale_all_dim: Growth | None = None  # yarn
    truncate: bool = True  # yarn
    short_factors: tuple[Positive, ...] = ()  # longrope: divisors of each pair's frequency
    long_factors: tuple[Positive, ...] = ()
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0  # proportional: of the pairs, those that turn
    rotary_dim: int | None = None  # rotated elements of a head; None: all
    is_backwards: bool = False  # heads turn the other way
    temperature: Temperature | None = None
    is_long: bool = False  # longrope: uses the long factors, because max_model_len exceeds the original positions
