"""GTE (multilingual, and English v1.5) and Snowflake Arctic Embed 2: as BERT, with rotary embeddings and a gate."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ...pooling.head import LabelLayer
from ..names.weight_names import WeightNames
from . import bert
from .family import need, positive, renamed, rope_everywhere

DEFAULTS = bert.DEFAULTS | {"type_vocab_size": 1}
THETA = 160_000.0


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("GTE", fields, position_embedding_type="rope", layer_norm_type="layer_norm", pack_qkv=True)
    need("GTE", fields, logn_attention_scale=False)
    found = renamed(fields, {"layer_norm_eps": "rms_norm_eps"}, **DEFAULTS) | {"num_key_value_heads": None}
    if not found.get("rope_parameters"):
        found.setdefault("rope_theta", 10_000.0 if "position_embedding_type" in fields else THETA)
    return with_ntk_rope(found)


def with_ntk_rope(found: dict[str, Any]) -> dict[str, Any]:
    """The fixed NTK scaling of the published files, as a linear scaling of another theta, which is the same."""
    scaling = found.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("rope_type", scaling.get("type")) != "ntk":
        return found
    need("GTE", scaling, mixed_b=None)
    hidden_size, heads = positive(found, "hidden_size"), positive(found, "num_attention_heads")
    factor, theta = positive(scaling, "factor"), positive(found, "rope_theta")
    if factor > (most := 1e6):
        raise ConfigError(f"config.json: factor={factor:g} of rope_scaling must be at most {most:g}")
    linear = {"rope_type": "linear", "factor": factor ** (2 * heads / hidden_size)}
    return found | {"rope_scaling": linear, "rope_theta": theta * factor}


def biases(_: HFConfig) -> Biases:
    return Biases(qkv=True, output=True, down=True)


LAYER = "new.encoder.layer.{}."
PUBLISHED = WeightNames(
    embedding="new.embeddings.word_embeddings.weight",
    token_types="new.embeddings.token_type_embeddings.weight",
    embedding_norm="new.embeddings.LayerNorm.weight",
    attention_norm=f"{LAYER}attn_ln.weight",
    mlp_norm=f"{LAYER}mlp_ln.weight",
    query=f"{LAYER}attention.qkv_proj",
    key=f"{LAYER}attention.qkv_proj",
    value=f"{LAYER}attention.qkv_proj",
    output=f"{LAYER}attention.o_proj",
    gate=f"{LAYER}mlp.up_gate_proj",
    up=f"{LAYER}mlp.up_gate_proj",
    down=f"{LAYER}mlp.down_proj",
    is_up_first=True,
    unused=(
        ".position_ids",
        "rotary_emb.inv_freq",
        *bert.with_biases("pooler.dense", "classifier", "lm_head.norm"),
        *bert.MASKED_LM,
    ),
)
OF_TRANSFORMERS = bert.of_transformers(PUBLISHED.begun("new.", "gte."), "gte", **bert.GATED)
GTE = replace(
    bert.BERT,
    name="gte",
    architectures=("GteModel", "NewModel"),
    weight_names=replace(PUBLISHED, others=(PUBLISHED.begun("new.", "gte."), OF_TRANSFORMERS)),
    biases=biases,
    is_gated=True,
    ropes=rope_everywhere,
    config=config,
    label_layers=(
        LabelLayer("new.pooler.dense", "tanh", other_names=("gte.pooler.dense",)),
        LabelLayer("classifier"),
    ),
)
