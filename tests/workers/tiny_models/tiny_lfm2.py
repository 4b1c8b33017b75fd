"""An LFM2 model with a few thousand random weights: three layers with short convolutions, two with attention."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from .tiny_model import FFN, HEAD_DIM, HEADS, HIDDEN, VOCAB_SIZE

LAYERS = ("conv", "full_attention", "conv", "conv", "full_attention")
WIDTH = 7  # its states take more than a block of 16 tokens of one KV head
CONFIG = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "block_ff_dim": FFN,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": len(LAYERS),
    "layer_types": LAYERS,
    "conv_L_cache": WIDTH,
    "conv_bias": False,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}


def write_tiny_lfm2(
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
    max_position_embeddings: int = 256,
    vocab_size: int = VOCAB_SIZE,
    scale: float = 0.25,
) -> str:
    """Write config.json and model.safetensors; the weights are large enough that logits differ clearly.

    `scale` is that of projections: with small ones the next token depends mostly on the last, so outputs repeat.
    """
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    tensors = {
        "model.embed_tokens.weight": weight(vocab_size, HIDDEN, scale=1.0),
        "model.embedding_norm.weight": torch.full((HIDDEN,), 0.4, dtype=dtype),
    }
    for layer, kind in enumerate(LAYERS):
        name = f"model.layers.{layer}."
        shapes = {"feed_forward.w1": (FFN, HIDDEN), "feed_forward.w2": (HIDDEN, FFN), "feed_forward.w3": (FFN, HIDDEN)}
        if kind == "conv":
            shapes |= {"conv.in_proj": (3 * HIDDEN, HIDDEN), "conv.out_proj": (HIDDEN, HIDDEN)}
            tensors[f"{name}conv.conv.weight"] = weight(HIDDEN, 1, WIDTH, scale=0.5)
        else:
            shapes |= {f"self_attn.{one}_proj": (HEAD_DIM, HIDDEN) for one in "kv"}
            shapes |= {f"self_attn.{one}_proj": (HEADS * HEAD_DIM, HIDDEN) for one in ("q", "out")}
            for norm in ("q_layernorm", "k_layernorm"):
                tensors[f"{name}self_attn.{norm}.weight"] = 1 + weight(HEAD_DIM, scale=0.3)
        tensors |= {f"{name}{part}.weight": weight(*shape, scale=scale) for part, shape in shapes.items()}
        tensors |= {f"{name}{norm}.weight": torch.ones(HIDDEN, dtype=dtype) for norm in ("operator_norm", "ffn_norm")}
    save_file(tensors, folder / "model.safetensors")
    sizes = {"vocab_size": vocab_size, "max_position_embeddings": max_position_embeddings}
    config = CONFIG | sizes | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
