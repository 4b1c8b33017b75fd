"""The geometry of a model of the library, from its config object."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ...checkpoint.hf_config import HFConfig, dtype_of
from ...geometry.geometry import Geometry
from ...geometry.layer_options import AttentionOptions
from ...geometry.model_options import Activation, Caps
from ...geometry.rope_scaling import RopeScaling
from ..end_tokens import eos_token_ids

# Fields that are above 0 only in models with layers of other kinds.
OTHER_KINDS = {
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok"),
    "latent attention": ("kv_lora_rank", "q_lora_rank"),
    "recurrent layers": ("state_size", "mamba_d_state", "mamba_n_heads", "ssm_state_size", "lru_width", "conv_L_cache"),
    "images": ("vision_config", "image_token_id", "image_token_index"),
    "audio": ("audio_config", "audio_token_id"),
    "an encoder and cross-attention": ("is_encoder_decoder", "cross_attention_layers", "add_cross_attention"),
}
LAYER_TYPES = ("full_attention", "sliding_attention")


def check_kind(config: Any) -> None:
    """Raises ConfigError naming a field that means layers of an unsupported kind."""
    for kind, fields in OTHER_KINDS.items():
        for field in fields:
            value = getattr(config, field, None)
            if value and not (isinstance(value, int) and value == 1 and field == "num_local_experts"):
                shown = value if isinstance(value, int) else "…"
                raise ConfigError(f"config.json: {field}={shown} means {kind}, which are not supported")
    for layer_type in getattr(config, "layer_types", None) or ():
        if layer_type not in LAYER_TYPES:
            raise ConfigError(f"config.json: layer_types has {layer_type}; valid: {' and '.join(LAYER_TYPES)}")


def geometry_of(folder: Path, config: Any, wanted: ModelConfig) -> Geometry:
    """The geometry without windows and caps, which are known after the model has run once: see with_attention."""
    heads, kv_heads, head_dim = _heads(config)
    layers, hidden = _size(config, "num_hidden_layers"), _size(config, "hidden_size")
    common = HFConfig(
        hidden_size=hidden,
        intermediate_size=getattr(config, "intermediate_size", None) or hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=_size(config, "vocab_size"),
        max_position_embeddings=_size(config, "max_position_embeddings"),
        dtype=str(getattr(config, "dtype", None) or "float32"),
        eos_token_id=getattr(config, "eos_token_id", None),
    )
    return Geometry(
        family=str(config.model_type),
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=common.intermediate_size,
        vocab_size=common.vocab_size,
        norm="rms",
        norm_eps=0.0,
        activation=Activation(),
        ropes=(RopeScaling("none"),) * layers,  # their modules rotate
        max_position_embeddings=common.max_position_embeddings,
        sliding_windows=(0,) * layers,
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids(folder, common, wanted.tokenizer),
        dtype=dtype_of(common, wanted.dtype),
    )


def _heads(config: Any) -> tuple[int, int, int]:
    """The numbers of query and KV heads, and the elements of a head. Raises ConfigError if layers differ in them."""
    heads = _size(config, "num_attention_heads")
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or _size(config, "hidden_size") // heads
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if not isinstance(getattr(config, name, None), int | None):
            raise ConfigError(f"config.json: {name} differs between layers, which is not supported")
    if head_dim % 2 or heads % kv_heads:
        raise ConfigError(
            f"config.json: {heads} query and {kv_heads} KV heads of {head_dim} elements; the kernels need an even head "
            "and KV heads that divide the query heads"
        )
    return heads, kv_heads, head_dim


def with_attention(geometry: Geometry, options: list[AttentionOptions], head_multiple: int) -> Geometry:
    windows = tuple(each.window for each in options)
    return replace(geometry, sliding_windows=windows, caps=Caps(scores=options[0].cap), head_multiple=head_multiple)


def _size(config: Any, name: str) -> int:
    """The field with the common name `name`, to which the library maps each config's own name."""
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"config.json: {name}={value} must be a number of at least 1")
    return value
