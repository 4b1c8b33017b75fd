"""Names of the tensors of recurrent layers; `{}` stands for the layer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mamba2Names:
    """Of a projection or the convolution, ".weight" and ".bias" follow."""

    into: str = "model.layers.{}.mamba.in_proj"  # gates, x, b, c and steps
    convolution: str = "model.layers.{}.mamba.conv1d"  # its weight is [channels, 1, width]
    a_log: str = "model.layers.{}.mamba.A_log"
    d: str = "model.layers.{}.mamba.D"
    dt_bias: str = "model.layers.{}.mamba.dt_bias"
    norm: str = "model.layers.{}.mamba.norm.weight"
    output: str = "model.layers.{}.mamba.out_proj"


@dataclass(frozen=True, slots=True)
class GatedDeltaNames:
    """Likewise."""

    into: str = "model.layers.{}.linear_attn.in_proj_qkvz"  # of each key head: query, key, its values and their gates
    into_gates: str = "model.layers.{}.linear_attn.in_proj_ba"  # of each key head: b, then alpha, of its heads
    convolution: str = "model.layers.{}.linear_attn.conv1d"
    a_log: str = "model.layers.{}.linear_attn.A_log"
    dt_bias: str = "model.layers.{}.linear_attn.dt_bias"
    norm: str = "model.layers.{}.linear_attn.norm.weight"
    output: str = "model.layers.{}.linear_attn.out_proj"


MAMBA2_NAMES = Mamba2Names()
GATED_DELTA_NAMES = GatedDeltaNames()
