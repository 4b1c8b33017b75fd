"""OPT: layer norms, learned positions, a feed-forward without a gate; the 350M model has post-norms and projections."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ..names.weight_names import WeightNames
from .family import Family, biases_of_layers, need, positive, renamed

FIELDS = {"ffn_dim": "intermediate_size", "activation_function": "hidden_act"}
NEEDED = {
    "_remove_final_layer_norm": False,
    "layer_norm_elementwise_affine": True,
    "enable_bias": True,
}


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, FIELDS, hidden_act="relu", rms_norm_eps=1e-5, tie_word_embeddings=True)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    need("OPT", found, **NEEDED)
    if found.get("do_layer_norm_before", True):
        need("OPT with do_layer_norm_before=true", found, word_embed_proj_dim=found.get("hidden_size"))
    elif "word_embed_proj_dim" in found:
        positive(found, "word_embed_proj_dim")
    return found


LAYER = "model.decoder.layers.{}."
NAMES = WeightNames(
    embedding="model.decoder.embed_tokens.weight",
    final_norm="model.decoder.final_layer_norm.weight",
    attention_norm=f"{LAYER}self_attn_layer_norm.weight",
    mlp_norm=f"{LAYER}final_layer_norm.weight",
    query=f"{LAYER}self_attn.q_proj",
    key=f"{LAYER}self_attn.k_proj",
    value=f"{LAYER}self_attn.v_proj",
    output=f"{LAYER}self_attn.out_proj",
    up=f"{LAYER}fc1",
    down=f"{LAYER}fc2",
    positions="model.decoder.embed_positions.weight",
    first_position=2,
)


def adapted(family: Family, config: HFConfig) -> Family:
    """The 350M model has no norm after the last layer, and projections if its token embeddings have another size."""
    if config.do_layer_norm_before:
        return family
    names = replace(NAMES, final_norm="")
    if config.word_embed_proj_dim not in (None, config.hidden_size):
        names = replace(names, project_in="model.decoder.project_in", project_out="model.decoder.project_out")
    return replace(family, weight_names=names, is_post_norm=True)


OPT = Family(
    "opt", ("OPTForCausalLM",), NAMES, biases_of_layers, norm="layer", is_gated=False, config=config, adapted=adapted
)
