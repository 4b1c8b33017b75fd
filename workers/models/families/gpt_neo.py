"""GPT-Neo: as GPT-2, with separate projections, unscaled scores, and a window in every other layer."""

from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases, Multipliers
from ..names.weight_names import WeightNames
from .family import FULL, SLIDING, Family, renamed, windows_by_pattern

FIELDS = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "window_size": "sliding_window",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
KINDS = {"global": FULL, "local": SLIDING}
MAX_LAYERS = 1 << 12


def config(fields: dict[str, Any]) -> dict[str, Any]:
    defaults = {"hidden_act": "gelu_new", "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "sliding_window": 256}
    found = renamed(fields, FIELDS, **defaults)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    if isinstance(size := found.get("hidden_size"), int):
        found.setdefault("intermediate_size", 4 * size)
    return found | {"layer_types": [KINDS[kind] for kind in _kinds(fields)]}


def _kinds(fields: dict[str, Any]) -> list[str]:
    """The kind of attention of each layer: by a list, or by pairs of kinds and how often they follow one another."""
    kinds, pairs = fields.get("attention_layers"), fields.get("attention_types", [[["global", "local"], 12]])
    if kinds is None:
        try:
            kinds = [kind for own, times in pairs for _ in range(min(times, MAX_LAYERS)) for kind in own]
        except (TypeError, ValueError):
            raise ConfigError(f"config.json: attention_types={pairs!r} must be pairs of kinds and a number") from None
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        raise ConfigError(f"config.json: attention_layers={kinds!r} must be a list of {' and '.join(KINDS)}")
    return kinds


def biases(_: HFConfig) -> Biases:
    return Biases(output=True, mlp=True)


def multipliers(_: HFConfig, __: torch.dtype) -> Multipliers:
    return Multipliers(scores=1.0)


LAYER = "transformer.h.{}."
ATTENTION = f"{LAYER}attn.attention."
NAMES = WeightNames(
    embedding="transformer.wte.weight",
    final_norm="transformer.ln_f.weight",
    attention_norm=f"{LAYER}ln_1.weight",
    mlp_norm=f"{LAYER}ln_2.weight",
    query=f"{ATTENTION}q_proj",
    key=f"{ATTENTION}k_proj",
    value=f"{ATTENTION}v_proj",
    output=f"{ATTENTION}out_proj",
    up=f"{LAYER}mlp.c_fc",
    down=f"{LAYER}mlp.c_proj",
    positions="transformer.wpe.weight",
    unused=(".attn.attention.bias", ".attn.attention.masked_bias"),
)
GPT_NEO = Family(
    name="gpt_neo",
    architectures=("GPTNeoForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    sliding_windows=windows_by_pattern,
    norm="layer",
    is_gated=False,
    multipliers=multipliers,
    config=config,
)
