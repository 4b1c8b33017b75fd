"""The text of Llama 3.2 Vision: Llama 3.1, between whose layers are others that read images and are not loaded."""

from dataclasses import replace
from typing import Any

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...checkpoint.text_part import CROSS_ATTENTION
from ...geometry.geometry import Geometry
from .family import MAX_LAYERS, Family, need, renamed
from .llama import LLAMA

EMBEDDINGS_OF_IMAGES = 8  # rows of the table of embeddings behind those of the vocabulary
DEFAULTS = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
} | CROSS_ATTENTION


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, of which num_hidden_layers counts the layers that read text alone."""
    need("Llama 3.2 Vision", fields, tie_word_embeddings=False)
    found = renamed(fields, {}, **DEFAULTS)
    if isinstance(own := found.get("rope_parameters"), dict) and "rope_theta" in own:
        found["rope_theta"] = own["rope_theta"]
    count, crossing = found["num_hidden_layers"], found["cross_attention_layers"]
    if not isinstance(count, int) or count > MAX_LAYERS:
        return found
    if not isinstance(crossing, list) or len({*map(str, crossing)} & {*map(str, range(count))}) != len(crossing):
        raise ConfigError(
            f"config.json: cross_attention_layers={crossing!r} must name layers below num_hidden_layers={count}, "
            "each once"
        )
    return found | {"num_hidden_layers": count - len(crossing)}


def crossing_layers(config: HFConfig) -> set[int]:
    return set(config.cross_attention_layers or ())


def adapted(family: Family, config: HFConfig) -> Family:
    """Without images, a layer with cross-attention returns its input."""
    crossing = tuple(f"model.layers.{layer}." for layer in sorted(crossing_layers(config)))
    return replace(family, weight_names=replace(family.weight_names, unused_prefixes=crossing))


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    crossing = crossing_layers(config)
    layers = range(geometry.num_layers + len(crossing))
    embeddings = replace(geometry.embeddings, num_unused=EMBEDDINGS_OF_IMAGES)
    in_names = tuple(layer for layer in layers if layer not in crossing)
    return replace(geometry, embeddings=embeddings, layers_in_names=in_names)


MLLAMA = replace(
    LLAMA, name="mllama", architectures=("MllamaForCausalLM",), config=config, adapted=adapted, refined=refined
)
