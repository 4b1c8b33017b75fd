"""Phi 1, 1.5 and 2: partial rotation; parallel layers with one norm; biases everywhere."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases, QKNorm
from ..names.weight_names import WeightNames
from .family import Family, need, partial_rope_everywhere, renamed, with_qk_norm


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Phi", fields, tie_word_embeddings=False)
    names = {"layer_norm_eps": "rms_norm_eps", "qk_layernorm": "qk_norm"}
    return renamed(fields, names, hidden_act="gelu_new", rms_norm_eps=1e-5, partial_rotary_factor=0.5)


def biases(_: HFConfig) -> Biases:
    return Biases(qkv=True, output=True, mlp=True, head=True)


LAYER = "model.layers.{}."
NAMES = WeightNames(
    final_norm="model.final_layernorm.weight",
    mlp_norm="",
    output=f"{LAYER}self_attn.dense",
    query_norm=f"{LAYER}self_attn.q_layernorm.weight",
    key_norm=f"{LAYER}self_attn.k_layernorm.weight",
    up=f"{LAYER}mlp.fc1",
    down=f"{LAYER}mlp.fc2",
)
PHI = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    weight_names=NAMES,
    biases=biases,
    norm="layer",
    is_gated=False,
    is_parallel=True,
    ropes=partial_rope_everywhere,
    config=config,
    qk_norm=QKNorm(),
    adapted=with_qk_norm,
)
