"""BERT: an encoder with learned positions, two token types and post-norms."""

from dataclasses import replace
from typing import Any

from ...pooling.head import LabelLayer
from ..names.weight_names import WeightNames
from .family import Family, biases_of_layers, need, renamed

DEFAULTS: dict[str, Any] = {"hidden_act": "gelu", "rms_norm_eps": 1e-12, "type_vocab_size": 2}


def with_biases(*names: str) -> tuple[str, ...]:
    """The weight and bias tensors of the layers `names`."""
    return tuple(f"{name}.{part}" for name in names for part in ("weight", "bias"))


TRANSFORM = "cls.predictions.transform"
MASKED_LM = (
    "cls.predictions.bias",
    *with_biases("cls.predictions.decoder", f"{TRANSFORM}.dense", f"{TRANSFORM}.LayerNorm", "cls.seq_relationship"),
    "lm_head.bias",  # RoBERTa's
    *with_biases("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {"layer_norm_eps": "rms_norm_eps"}, **DEFAULTS)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    need("BERT", found, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    return found


def weight_names(prefix: str, first_position: int = 0) -> WeightNames:
    """The names of an encoder whose tensors begin with `prefix` in checkpoints with a classification head."""
    layer = f"{prefix}.encoder.layer.{{}}."
    return WeightNames(
        embedding=f"{prefix}.embeddings.word_embeddings.weight",
        positions=f"{prefix}.embeddings.position_embeddings.weight",
        first_position=first_position,
        token_types=f"{prefix}.embeddings.token_type_embeddings.weight",
        embedding_norm=f"{prefix}.embeddings.LayerNorm.weight",
        attention_norm=f"{layer}attention.output.LayerNorm.weight",
        mlp_norm=f"{layer}output.LayerNorm.weight",
        query=f"{layer}attention.self.query",
        key=f"{layer}attention.self.key",
        value=f"{layer}attention.self.value",
        output=f"{layer}attention.output.dense",
        up=f"{layer}intermediate.dense",
        down=f"{layer}output.dense",
        unused=(".position_ids", *with_biases("pooler.dense"), *MASKED_LM),
    )


def of_transformers(published: WeightNames, prefix: str, **feed_forward: str) -> WeightNames:
    """The names in transformers' format of an encoder with rotary embeddings; `feed_forward`: within its layers."""
    layer = f"{prefix}.layers.{{}}."
    parts: dict[str, Any] = {part: f"{layer}mlp.{name}" for part, name in feed_forward.items()}
    return replace(
        published,
        attention_norm=f"{layer}post_attention_layernorm.weight",
        mlp_norm=f"{layer}post_mlp_layernorm.weight",
        query=f"{layer}self_attn.q_proj",
        key=f"{layer}self_attn.k_proj",
        value=f"{layer}self_attn.v_proj",
        output=f"{layer}self_attn.o_proj",
        **parts,
    )


GATED = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}  # of `of_transformers`
BERT = Family(
    "bert",
    ("BertModel",),
    weight_names("bert"),
    biases_of_layers,
    norm="layer",
    is_gated=False,
    config=config,
    is_bidirectional=True,
    is_post_norm=True,
    label_layers=(LabelLayer("bert.pooler.dense", "tanh"), LabelLayer("classifier")),
    token_label_layers=(LabelLayer("classifier"),),
)
