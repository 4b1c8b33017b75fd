"""StarCoder2: layer norms, rotary embedding, a feed-forward without a gate; all layers may have a window."""

from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Biases
from ..names.weight_names import WeightNames
from .family import Family, renamed
from .mistral import sliding_window_everywhere


def config(fields: dict[str, Any]) -> dict[str, Any]:
    found = renamed(fields, {"norm_epsilon": "rms_norm_eps"}, hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-5)
    has_biases = found.get("use_bias", True)
    return {"tie_word_embeddings": True, "num_key_value_heads": 2} | found | {"attention_bias": has_biases}


def biases(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias, mlp=config.attention_bias)


STARCODER2 = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    weight_names=WeightNames(up="model.layers.{}.mlp.c_fc", down="model.layers.{}.mlp.c_proj"),
    biases=biases,
    sliding_windows=sliding_window_everywhere,
    norm="layer",
    is_gated=False,
    config=config,
)
