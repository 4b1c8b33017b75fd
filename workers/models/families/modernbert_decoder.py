"""ModernBERT's decoder (Ettin): its layers with causal attention, and a prediction head before the output head."""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.geometry import Geometry
from ...geometry.model_options import Biases
from . import llama, modernbert
from .family import SLIDING, need, none_in_any_layer, positive

LAYER = "model.layers.{}."
GATE_UP = f"{LAYER}mlp.Wi"


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("ModernBERT's decoder", fields, classifier_bias=False)
    reach = positive({"local_attention": 128} | fields, "local_attention")
    found = {"decoder_bias": True, "tie_word_embeddings": True} | modernbert.config(fields)
    return found | {"sliding_window": int(reach) // 2, "head_bias": found["decoder_bias"]}


def biases(config: HFConfig) -> Biases:
    return replace(llama.biases(config), head=config.head_bias)


def refined(_: HFConfig, geometry: Geometry) -> Geometry:
    return replace(geometry, has_prediction_head=True)


def windows(config: HFConfig) -> tuple[int, ...]:
    """As many tokens as an encoder's layer attends to on one side."""
    return tuple((config.sliding_window or 0) if kind == SLIDING else 0 for kind in modernbert.kinds(config))


MODERNBERT_DECODER = replace(
    modernbert.MODERNBERT,
    name="modernbert_decoder",
    architectures=("ModernBertDecoderForCausalLM",),
    weight_names=replace(
        modernbert.MODERNBERT.weight_names,
        query=f"{LAYER}attn.q_proj",
        key=f"{LAYER}attn.k_proj",
        value=f"{LAYER}attn.v_proj",
        output_head="decoder.weight",
        head_dense="lm_head.dense",
        head_norm="lm_head.norm.weight",
        unused=("lm_head.dense.weight", "lm_head.norm.weight", "decoder.bias"),  # without an output head
    ),
    biases=biases,
    sliding_windows=windows,
    reaches=none_in_any_layer,
    config=config,
    is_bidirectional=False,
    refined=refined,
)
