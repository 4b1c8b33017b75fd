"""Names of the tensors of recurrent layers; `{}` stands for the layer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mamba1Names:
    """Of a projection or the convolution, ".weight" and ".bias" follow."""

    into: str = "model.layers.{}.mamba.in_proj"  # x, then gates
    convolution: str = "model.layers.{}.mamba.conv1d"  # its weight is [channels, 1, width]
    parts: str = "model.layers.{}.mamba.x_proj"  # steps of low rank, b and c
    steps: str = "model.layers.{}.mamba.dt_proj"
    a_log: str = "model.layers.{}.mamba.A_log"
    d: str = "model.layers.{}.mamba.D"
    steps_norm: str = "model.layers.{}.mamba.dt_layernorm.weight"
    b_norm: str = "model.layers.{}.mamba.b_layernorm.weight"
    c_norm: str = "model.layers.{}.mamba.c_layernorm.weight"
    output: str = "model.layers.{}.mamba.out_proj"


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
    """Likewise. If `query`, `key` and `value` are the same name, that matrix has all of them, in this order."""

    query: str = "model.layers.{}.linear_attn.in_proj_qkv"
    key: str = "model.layers.{}.linear_attn.in_proj_qkv"
    value: str = "model.layers.{}.linear_attn.in_proj_qkv"
    gates: str = "model.layers.{}.linear_attn.in_proj_z"
    b: str = "model.layers.{}.linear_attn.in_proj_b"
    alpha: str = "model.layers.{}.linear_attn.in_proj_a"
    of_all: str = ""  # instead of the first six: all queries, then keys, values, gates, b and alpha
    by_key_head: str = ""  # instead of the first four: of each key head its query, key, values and their gates
    decays_down: str = ""  # Kimi delta attention, instead of alpha and of gates: two projections, one after the other
    decays_up: str = ""
    gates_down: str = ""
    gates_up: str = ""
    gates_by_key_head: str = ""  # instead of b and alpha: of each key head b, then alpha, of its heads
    query_convolution: str = "model.layers.{}.linear_attn.conv1d"  # likewise
    key_convolution: str = "model.layers.{}.linear_attn.conv1d"
    value_convolution: str = "model.layers.{}.linear_attn.conv1d"
    a_log: str = "model.layers.{}.linear_attn.A_log"
    dt_bias: str = "model.layers.{}.linear_attn.dt_bias"
    norm: str = "model.layers.{}.linear_attn.norm.weight"
    output: str = "model.layers.{}.linear_attn.out_proj"

    @property
    def convolutions(self) -> tuple[str, str, str]:
        return self.query_convolution, self.key_convolution, self.value_convolution


@dataclass(frozen=True, slots=True)
class LightningNames:
    """Likewise."""

    into: str = "model.layers.{}.self_attn.qkv_proj"  # of each head its query, its key and its value
    gates: str = "model.layers.{}.self_attn.output_gate"
    norm: str = "model.layers.{}.self_attn.norm.weight"
    output: str = "model.layers.{}.self_attn.out_proj"


MAMBA1_NAMES = Mamba1Names()
MAMBA2_NAMES = Mamba2Names()
GATED_DELTA_NAMES = GatedDeltaNames()
LIGHTNING_NAMES = LightningNames()
