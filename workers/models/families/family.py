"""What a family of models may differ in, and what most of them share."""

from collections.abc import Callable
from dataclasses import dataclass

from ...checkpoint.hf_config import HFConfig


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names in a checkpoint; `{}` stands for the layer. The defaults are what most families use."""

    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm.weight"
    output_head: str = "lm_head.weight"
    attention_norm: str = "model.layers.{}.input_layernorm.weight"
    mlp_norm: str = "model.layers.{}.post_attention_layernorm.weight"
    query: str = "model.layers.{}.self_attn.q_proj"  # projections: ".weight" and ".bias" follow
    key: str = "model.layers.{}.self_attn.k_proj"
    value: str = "model.layers.{}.self_attn.v_proj"
    output: str = "model.layers.{}.self_attn.o_proj"
    query_norm: str = "model.layers.{}.self_attn.q_norm.weight"
    key_norm: str = "model.layers.{}.self_attn.k_norm.weight"
    gate: str = "model.layers.{}.mlp.gate_proj"
    up: str = "model.layers.{}.mlp.up_proj"
    down: str = "model.layers.{}.mlp.down_proj"
    unused: tuple[str, ...] = ("rotary_emb.inv_freq",)  # endings of names that are in some files and not needed


@dataclass(frozen=True, slots=True)
class Biases:
    """Which projections add a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


def no_biases(_: HFConfig) -> Biases:
    return Biases()


def full_attention(config: HFConfig) -> tuple[int, ...]:
    return (0,) * config.num_hidden_layers


def windows_by_layer_type(config: HFConfig) -> tuple[int, ...]:
    """Layers slide where `layer_types` says so, or else from `max_window_layers` on; only with use_sliding_window."""
    window = config.sliding_window if config.use_sliding_window else None
    if window is None:
        return full_attention(config)
    sliding = [layer >= config.max_window_layers for layer in range(config.num_hidden_layers)]
    if config.layer_types is not None:
        sliding = [kind == "sliding_attention" for kind in config.layer_types]
    return tuple(window if slides else 0 for slides in sliding)


@dataclass(frozen=True, slots=True)
class Family:
    """One family: its architectures in config.json, and what really differs."""

    name: str
    architectures: tuple[str, ...]
    weight_names: WeightNames = WeightNames()
    biases: Callable[[HFConfig], Biases] = no_biases
    sliding_windows: Callable[[HFConfig], tuple[int, ...]] = full_attention  # per layer, 0: full attention
    qk_norm: bool = False  # queries and keys are normalised per head before they are rotated
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
