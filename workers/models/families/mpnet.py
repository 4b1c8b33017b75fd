"""MPNet: as RoBERTa without token types; a score gains a learned number for the distance of its key."""

from dataclasses import replace
from typing import Any

from ...geometry.layer_options import RelativePositions
from ..names.weight_names import WeightNames
from . import bert, roberta
from .family import need, renamed

NUM_BUCKETS = 32  # transformers takes no other number, whatever config.json says
LAYER = "mpnet.encoder.layer.{}."


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("MPNet", fields, relative_attention_num_buckets=NUM_BUCKETS)
    found = renamed(fields, {"layer_norm_eps": "rms_norm_eps"}, hidden_act="gelu", rms_norm_eps=1e-12)
    found["num_key_value_heads"] = None  # never grouped-query attention, whatever config.json says
    return roberta.without_first_positions(found)


MPNET = replace(
    roberta.ROBERTA,
    name="mpnet",
    architectures=("MPNetModel",),
    weight_names=WeightNames(
        embedding="mpnet.embeddings.word_embeddings.weight",
        positions="mpnet.embeddings.position_embeddings.weight",
        first_position=roberta.FIRST_POSITION,
        relative_bias="mpnet.encoder.relative_attention_bias.weight",
        embedding_norm="mpnet.embeddings.LayerNorm.weight",
        attention_norm=f"{LAYER}attention.LayerNorm.weight",
        mlp_norm=f"{LAYER}output.LayerNorm.weight",
        query=f"{LAYER}attention.attn.q",
        key=f"{LAYER}attention.attn.k",
        value=f"{LAYER}attention.attn.v",
        output=f"{LAYER}attention.attn.o",
        up=f"{LAYER}intermediate.dense",
        down=f"{LAYER}output.dense",
        unused=(".position_ids", *bert.with_biases("pooler.dense"), *bert.MASKED_LM),
    ),
    config=config,
    relative_positions=RelativePositions(NUM_BUCKETS, max_distance=128),
)
