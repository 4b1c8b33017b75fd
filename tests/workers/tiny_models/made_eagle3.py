"""Targets and EAGLE-3 heads with made weights: random ones, and ones that know a target's only text."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .tiny_model import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB_SIZE, write_tiny_model

LAYERS = 8
DRAFT_VOCAB = 120


def write_target(folder: Path, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> str:
    return write_tiny_model(folder, dtype, num_hidden_layers=LAYERS, **changes)


def write_chain_target(folder: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    """A target in which each token has one successor, by its embedding alone: layers add nothing."""
    path = write_target(folder, dtype)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensors[name])
    embeddings = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = 2 * successors_first(embeddings, 1)
    save_file(tensors, folder / "model.safetensors")
    return path


def successors_first(embeddings: Tensor, ahead: int) -> Tensor:
    """A head's rows: that of the token which comes `ahead` tokens later has this token's embedding."""
    order = torch.randperm(len(embeddings), generator=torch.Generator().manual_seed(1))
    rows = torch.empty_like(embeddings)
    rows[order.roll(-ahead)] = embeddings[order]
    return rows


def head_config(dtype: torch.dtype, **changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": DRAFT_VOCAB,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": FFN,
        "num_hidden_layers": 1,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
    } | changes


def write_head(
    folder: Path, dtype: torch.dtype = torch.bfloat16, tensors: dict[str, Tensor] | None = None, **changes: Any
) -> Path:
    """A head with random weights, or with `tensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head_tensors(dtype) if tensors is None else tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(head_config(dtype, **changes)))
    return folder


def write_head_for(target: Path, folder: Path) -> Path:
    """A head with random weights for the model in `target`, of any size."""
    config = json.loads((target / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    sizes = {name: config[name] for name in names}
    return write_head(folder, tensors=head_tensors(**sizes), **sizes)


def head_tensors(dtype: torch.dtype = torch.bfloat16, layer: str = "midlayer.", **sizes: int) -> dict[str, Tensor]:
    """Random weights in the sizes of `head_config`, but for `sizes`."""
    config = head_config(dtype, **sizes)
    hidden, feed_forward = config["hidden_size"], config["intermediate_size"]
    of_queries, of_keys = (config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value"))
    generator = torch.Generator().manual_seed(3)

    def weight(*shape: int, scale: float = 0.25) -> Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    chosen = torch.randperm(config["vocab_size"], generator=generator)[:DRAFT_VOCAB]
    has_draft = torch.zeros(config["vocab_size"], dtype=torch.bool)
    has_draft[chosen] = True
    of_layer = {
        "self_attn.q_proj": (of_queries, 2 * hidden),
        "self_attn.k_proj": (of_keys, 2 * hidden),
        "self_attn.v_proj": (of_keys, 2 * hidden),
        "self_attn.o_proj": (hidden, of_queries),
        "mlp.gate_proj": (feed_forward, hidden),
        "mlp.up_proj": (feed_forward, hidden),
        "mlp.down_proj": (hidden, feed_forward),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return {
        "d2t": chosen - torch.arange(DRAFT_VOCAB),
        "t2d": has_draft,
        "fc.weight": weight(hidden, 3 * hidden, scale=0.1),
        "norm.weight": 1 + weight(hidden),
        "lm_head.weight": weight(DRAFT_VOCAB, hidden, scale=0.4),
        **{f"{layer}{name}.weight": weight(*shape) for name, shape in of_layer.items()},
        **{f"{layer}{name}.weight": 1 + weight(hidden) for name in norms},
    }


def chain_tensors(embeddings: Tensor, *, reads_hidden: bool) -> dict[str, Tensor]:
    """A head of CHAIN_CONFIG that knows the text of `write_chain_target` with these embeddings.

    `reads_hidden`: it knows the token after the next by the target's hidden state alone, so its first draft is right
    and no other; otherwise by the embedding, which attention to the position itself adds to almost nothing, so that all
    drafts are right.
    """
    dtype, vocab = embeddings.dtype, len(embeddings)
    tensors = head_tensors(dtype)
    order = torch.randperm(vocab, generator=torch.Generator().manual_seed(7))
    rows = successors_first(embeddings, 2 if reads_hidden else 1)[order]
    zero, one = torch.zeros(HIDDEN, HIDDEN, dtype=dtype), torch.eye(HIDDEN, dtype=dtype)
    at = "midlayer.self_attn"
    from_embedding = torch.cat((one, zero), 1)
    generator = torch.Generator().manual_seed(4)
    mixed = (torch.randn(HIDDEN, HIDDEN, generator=generator) * 0.4).to(dtype)
    tensors |= {
        "d2t": order - torch.arange(vocab),
        "t2d": torch.ones(vocab, dtype=torch.bool),
        "fc.weight": torch.cat((zero, one if reads_hidden else zero, zero), 1),
        "norm.weight": torch.ones(HIDDEN, dtype=dtype),
        "lm_head.weight": rows.contiguous(),
        f"{at}.q_proj.weight": torch.cat((mixed, zero), 1),
        f"{at}.k_proj.weight": torch.cat((mixed, zero), 1),
        f"{at}.v_proj.weight": from_embedding,
        f"{at}.o_proj.weight": zero if reads_hidden else one,
        "midlayer.mlp.down_proj.weight": torch.zeros(HIDDEN, FFN, dtype=dtype),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN, dtype=dtype),
        "midlayer.hidden_norm.weight": torch.full((HIDDEN,), 1.0 if reads_hidden else 0.01, dtype=dtype),
    }
    return tensors


# One wide head, whose scores are by far the largest at the position itself.
CHAIN_CONFIG: dict[str, Any] = {
    "draft_vocab_size": VOCAB_SIZE,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": HIDDEN,
    "norm_before_residual": True,
}
