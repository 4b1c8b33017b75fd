"""nanochat: norms without weights, one of them after the embedding; heads that turn backwards; a squared ReLU.

Norms of queries and keys follow the rotation there. Without weights they can as well precede it.
"""

from dataclasses import replace
from typing import Any

from ...checkpoint.hf_config import HFConfig
from ...geometry.model_options import Caps, QKNorm
from ...geometry.rope_scaling import RopeScaling
from ..names.weight_names import WeightNames
from .family import Family, biases_of_attention
from .rope_config import rope_of

NAMES = WeightNames(
    embedding_norm="model.norm.weight",
    up="model.layers.{}.mlp.fc1",
    down="model.layers.{}.mlp.fc2",
)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return {"hidden_act": "relu2", "final_logit_softcapping": 15.0} | fields


def ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    return (replace(rope_of(config), is_backwards=True),) * config.num_hidden_layers


def caps(config: HFConfig) -> Caps:
    return Caps(logits=config.final_logit_softcapping or 0.0)


NANOCHAT = Family(
    name="nanochat",
    architectures=("NanoChatForCausalLM",),
    weight_names=NAMES,
    biases=biases_of_attention,
    norm="plain_rms",
    qk_norm=QKNorm(),
    is_gated=False,
    ropes=ropes,
    caps=caps,
    config=config,
)
