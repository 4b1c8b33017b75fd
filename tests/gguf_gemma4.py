"""What the converter makes of Gemma 4, see gguf_architectures.py."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

WINDOWS = "sliding_attention"


def gemma4_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that Gemma 4 has besides those of all, or otherwise; transformers writes sizes by layer."""
    slides = [kind == WINDOWS for kind in config["layer_types"]]
    full = (config.get("per_layer_config") or {}).get(str(slides.index(False)), {})
    size, own_size = full.get("head_dim", config["head_dim"]), config["head_dim"]
    kv_heads = config["num_key_value_heads"]
    keys: dict[str, Any] = {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope.freq_base_swa": float(config["rope_parameters"][WINDOWS]["rope_theta"]),
        "rope.dimension_count": size,
        "rope.dimension_count_swa": own_size,
    }
    for each in ("key", "value"):
        keys |= {f"attention.{each}_length": size, f"attention.{each}_length_swa": own_size}
    if "num_key_value_heads" in full:
        of_kind = {True: kv_heads, False: full["num_key_value_heads"]}
        keys["attention.head_count_kv"] = [of_kind[each] for each in slides]
    if config["use_double_wide_mlp"]:
        shared, width = config["num_kv_shared_layers"], config["intermediate_size"]
        keys["feed_forward_length"] = [width] * (len(slides) - shared) + [2 * width] * shared
    if cap := config.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = cap
    if used := config.get("top_k_experts"):
        keys["expert_used_count"] = used
    return keys


def gemma4_divisors(config: Mapping[str, Any]) -> list[float]:
    """Of the pairs of layers with full attention: those that are not rotated have a huge one."""
    pairs = gemma4_keys(config)["rope.dimension_count"] // 2
    rotated = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return [1.0] * rotated + [1e30] * (pairs - rotated)


def gemma4_tensor(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """The tensor's name as the package maps it."""
    if name.endswith("router.scale"):
        return f"{name.removesuffix('router.scale')}router.proj.scale", tensor
    if name.endswith("per_expert_scale"):
        return f"{name.removesuffix('router.per_expert_scale')}experts.down_proj.scale", tensor
    return (f"{name}.weight" if name.endswith(("layer_scalar", "gate_up_proj", "experts.down_proj")) else name), tensor
