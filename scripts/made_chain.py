"""A made Qwen3 whose greedy text is known: each token has one successor, and all tokens are one cycle.

    python scripts/made_chain.py FOLDER [layers=28]

The layers' outputs are zero, so a hidden state is the embedding of its token, and the head finds the successor by it.
Kernels do not look for zeros: a step takes the time of any model of this shape: Qwen3-0.6B's with fewer tokens.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from made_experts import token_names
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    layers: int = 28
    hidden: int = 1024
    intermediate: int = 3072
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 32_000


def shape_of(changes: Sequence[str]) -> Shape:
    """The default shape with changes such as "layers=2"."""
    return replace(Shape(), **{name: int(value) for name, _, value in (change.partition("=") for change in changes)})


def cycle(vocab: int) -> NDArray[np.int64]:
    """All tokens, each followed by its successor; the last one's is the first."""
    order: NDArray[np.int64] = np.random.default_rng(0).permutation(vocab)
    return order


def tensors_of(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return (torch.randn(sizes, generator=generator) / sizes[-1] ** 0.5).bfloat16()

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=torch.bfloat16)

    embeddings, order = random(shape.vocab, shape.hidden), torch.from_numpy(cycle(shape.vocab))
    head = torch.empty_like(embeddings)
    head[order.roll(-1)] = embeddings[order]
    tensors = {"model.embed_tokens.weight": embeddings, "lm_head.weight": 8 * head}
    tensors["model.norm.weight"] = torch.ones(shape.hidden).bfloat16()
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(shape.hidden).bfloat16()
        for name in ("q_norm", "k_norm"):
            tensors[f"{at}.self_attn.{name}.weight"] = torch.ones(shape.head_dim).bfloat16()
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = random(heads * shape.head_dim, shape.hidden)
        tensors[f"{at}.self_attn.o_proj.weight"] = zeros(shape.hidden, shape.heads * shape.head_dim)
        for name in ("gate", "up"):
            tensors[f"{at}.mlp.{name}_proj.weight"] = random(shape.intermediate, shape.hidden)
        tensors[f"{at}.mlp.down_proj.weight"] = zeros(shape.hidden, shape.intermediate)
    return tensors


def write_made_chain(folder: Path, shape: Shape) -> None:
    """Write config.json, model.safetensors and a tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 4096,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate(token_names(shape.vocab))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors_of(shape), folder / "model.safetensors")


if __name__ == "__main__":
    write_made_chain(Path(sys.argv[1]), shape_of(sys.argv[2:]))
