"""MiniMax-Text-01 and MiniMax-M1: most layers are lightning attention; norms replace the residual stream; experts."""

from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Multipliers
from ...geometry.recurrent.lightning import LightningLayer
from ...geometry.recurrent.recurrent import Recurrent
from ..names.weight_names import WeightNames
from . import mixtral
from .family import FULL, MAX_LAYERS, Family, need, partial_rope_everywhere, positive, renamed
from .mamba2_layers import LINEAR

PARTS = {"full_attn": "full_attention", "linear_attn": "linear_attention", "mlp": "mlp"}  # and their published names
PUBLISHED = {
    f"layernorm_{theirs}_{which}": f"{ours}_{which}_factor"
    for ours, theirs in PARTS.items()
    for which in ("alpha", "beta")
}
DECAYS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")  # in files of transformers


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("MiniMax-Text-01", fields, hidden_act="silu", sliding_window=None, attention_bias=False)
    shared = fields.get("shared_intermediate_size")
    need("MiniMax-Text-01", fields, shared_intermediate_size=[0] * len(shared) if isinstance(shared, list) else 0)
    defaults = {"num_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    found = renamed(fields, {"num_local_experts": "num_experts"} | PUBLISHED, **defaults)
    if (kinds := fields.get("attn_type_list")) is not None:
        if fields.get("postnorm") is not True:
            raise ConfigError("config.json: postnorm must be true for MiniMax-Text-01; other layers are not supported")
        found["layer_types"] = _layer_types(kinds)
    elif "layer_types" not in found and isinstance(layers := fields.get("num_hidden_layers"), int):
        found["layer_types"] = [LINEAR if at % 2 else FULL for at in range(min(layers, MAX_LAYERS))]
    return found | {"stream_multiplier": _factor(found, "alpha"), "residual_multiplier": _factor(found, "beta")}


def _layer_types(kinds: Any) -> list[str]:
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= {"0", "1"}:
        raise ConfigError(f"config.json: attn_type_list={kinds!r} must be a list of 0 (linear) and 1 (full attention)")
    return [FULL if int(kind) else LINEAR for kind in kinds]


def _factor(found: dict[str, Any], which: str) -> float:
    """The factor of all parts."""
    names = [f"{part}_{which}_factor" for part in PARTS]
    each = {name: positive({name: 1.0} | found, name) for name in names}
    if len(set(each.values())) > 1:
        stated = ", ".join(f"{name}={value:g}" for name, value in each.items())
        raise ConfigError(f"config.json: {stated} are not supported for MiniMax-Text-01; they must be equal")
    return each[names[0]]


def multipliers(config: HFConfig, _: torch.dtype) -> Multipliers:
    """An output is divided by the stream's factor instead of multiplying the stream."""
    factor = config.stream_multiplier
    return Multipliers(residual=config.residual_multiplier / factor, stream=factor)


def recurrent(config: HFConfig) -> tuple[Recurrent | None, ...]:
    """Decays are slower from layer to layer."""
    heads, last = config.num_attention_heads, config.num_hidden_layers - 1
    head_dim, found = config.head_dim or config.hidden_size // heads, list[Recurrent | None]()
    for index, kind in enumerate(config.layer_types or ()):
        layer = LightningLayer(heads, head_dim, 1.0 - index / (last + 1e-5) + 1e-5) if kind == LINEAR else None
        if layer is not None:
            layer.check()
        found.append(layer)
    return tuple(found)


MINIMAX = Family(
    name="minimax",
    architectures=("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
    weight_names=WeightNames(experts=mixtral.NAMES, unused=("rotary_emb.inv_freq", *DECAYS)),
    ropes=partial_rope_everywhere,
    multipliers=multipliers,
    layer_types=(FULL, LINEAR),
    config=config,
    experts=mixtral.experts,
    recurrent=recurrent,
    has_residual_norms=True,
)
