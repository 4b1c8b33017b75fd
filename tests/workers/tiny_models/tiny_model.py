"""A Llama model with a few thousand random weights in a folder: it runs the real loader and decoder in milliseconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

VOCAB_SIZE = 300
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 4, 2, 16, 96, 2


def write_tiny_model(
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    draw: Callable[[tuple[int, ...]], torch.Tensor] | None = None,
    **changes: Any,
) -> str:
    """Write config.json and model.safetensors; the weights are large enough that logits differ clearly.

    `changes` are entries of config.json; a `model_type` of "qwen3" gets the norms of queries and keys that it needs,
    one of "llama4_text" its names, one of "glm4_moe" experts in all layers but the first; a `kv_lora_rank` and its
    companions give latent attention.
    `draw(shape)` replaces torch's normal numbers, which depend on the processor.
    """
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int, scale: float) -> torch.Tensor:
        plain = draw(shape) if draw else torch.randn(shape, generator=generator)
        return (plain * scale).to(dtype)

    vocab_size = changes.get("vocab_size", VOCAB_SIZE)
    tensors = {
        "model.embed_tokens.weight": weight(vocab_size, HIDDEN, scale=1.0),
        "model.norm.weight": torch.ones(HIDDEN, dtype=dtype),
        "lm_head.weight": weight(vocab_size, HIDDEN, scale=0.4),
    }
    for layer in range(changes.get("num_hidden_layers", LAYERS)):
        name = f"model.layers.{layer}"
        shapes, has_experts = _shapes(changes, layer), _has_experts(changes, layer)
        if "kv_lora_rank" in changes:
            for part, size in (("q_a", changes["q_lora_rank"]), ("kv_a", changes["kv_lora_rank"])):
                tensors[f"{name}.self_attn.{part}_layernorm.weight"] = 1 + weight(size, scale=0.3)
        tensors |= {f"{name}.{part}.weight": weight(*shape, scale=0.25) for part, shape in shapes.items()}
        if has_experts:
            count = changes["n_routed_experts"]
            tensors[f"{name}.mlp.gate.weight"] = weight(count, HIDDEN, scale=0.4)
            tensors[f"{name}.mlp.gate.e_score_correction_bias"] = weight(count, scale=0.1).float()
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(HIDDEN, dtype=dtype)
        if changes.get("model_type") == "qwen3":
            for norm in ("q_norm", "k_norm"):
                tensors[f"{name}.self_attn.{norm}.weight"] = 1 + weight(HEAD_DIM, scale=0.3)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(dtype) | changes))
    return str(folder)


def _config(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }


def _has_experts(changes: dict[str, Any], layer: int) -> bool:
    return changes.get("model_type") == "glm4_moe" and layer > 0


def _shapes(changes: dict[str, Any], layer: int) -> dict[str, tuple[int, int]]:
    """The projections of a layer, by name."""
    attention = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    }
    dense = "feed_forward" if changes.get("model_type") == "llama4_text" else "mlp"
    feed_forward: dict[str, tuple[int, int]] = {}
    for name, size in _expert_sizes(changes) if _has_experts(changes, layer) else [(dense, FFN)]:
        feed_forward |= {f"{name}.gate_proj": (size, HIDDEN), f"{name}.up_proj": (size, HIDDEN)}
        feed_forward[f"{name}.down_proj"] = (HIDDEN, size)
    return feed_forward | _latent_shapes(changes) if "kv_lora_rank" in changes else attention | feed_forward


def _expert_sizes(changes: dict[str, Any]) -> list[tuple[str, int]]:
    """The names and intermediate sizes of a layer's experts and of its shared one."""
    names = [f"mlp.experts.{expert}" for expert in range(changes["n_routed_experts"])]
    return [(name, changes["moe_intermediate_size"]) for name in (*names, "mlp.shared_experts")]


def _latent_shapes(changes: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """The projections of latent attention."""
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    query_rank, kv_rank, nope, rope, value = (changes[name] for name in names)
    return {
        "self_attn.q_a_proj": (query_rank, HIDDEN),
        "self_attn.q_b_proj": (HEADS * (nope + rope), query_rank),
        "self_attn.kv_a_proj_with_mqa": (kv_rank + rope, HIDDEN),
        "self_attn.kv_b_proj": (HEADS * (nope + value), kv_rank),
        "self_attn.o_proj": (HIDDEN, HEADS * value),
    }
