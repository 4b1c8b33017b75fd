"""The multipliers of a Falcon-H1 layer's parts (maximal update parametrisation)."""

from typing import Annotated

import msgspec
from msgspec import Meta

Factor = Annotated[float, Meta(gt=0, le=1e6)]


class PartMultipliers(msgspec.Struct, frozen=True, kw_only=True):
    """Constant factors of inputs and outputs of a layer's parts, by their names in config.json.

    No part has a bias, so a factor may be applied anywhere among the linear operations that it passes. Those of
    attention are free: queries, keys and values grow with its input, so scores grow with the square of it, which
    becomes a part of the factor of scores, as the factor of keys does; and its output is linear in its values. Factors
    of other projections are applied to their results (ScaledLinear), which costs no bits of the weights. So they are
    the same for any number of ranks and any form of weights.
    """

    attention_in_multiplier: Factor = 1.0
    attention_out_multiplier: Factor = 1.0
    key_multiplier: Factor = 1.0
    ssm_in_multiplier: Factor = 1.0
    ssm_out_multiplier: Factor = 1.0
    ssm_multipliers: tuple[Factor, Factor, Factor, Factor, Factor] = (1.0,) * 5  # of gates, x, b, c and steps
    mlp_multipliers: tuple[Factor, Factor] = (1.0, 1.0)  # of the gate, and of the feed-forward's output

    @property
    def scores(self) -> float:
        return self.attention_in_multiplier * self.attention_in_multiplier * self.key_multiplier

    @property
    def attention_output(self) -> float:
        return self.attention_in_multiplier * self.attention_out_multiplier

    @property
    def recurrence_inputs(self) -> tuple[float, ...]:
        return tuple(self.ssm_in_multiplier * each for each in self.ssm_multipliers)
