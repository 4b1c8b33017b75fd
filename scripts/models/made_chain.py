"""A made Qwen3 whose greedy text is known: each token has one successor, and all tokens are one cycle.

The layers' outputs are zero, so a hidden state is the embedding of its token, and the head finds the successor by it.
Kernels do not look for zeros: a step takes the time of any model of this shape: Qwen3-0.6B's with fewer tokens.

With mtp_percent it is a GLM-4.5 of the same shape, without experts, and has a layer for multi-token prediction, which
drafts the right successor of so many percent of the tokens, chosen at random.
"""

import argparse
import json
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
    mtp_percent: int = 0  # 0: no layer for multi-token prediction


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
    for layer in range(shape.layers + (shape.mtp_percent > 0)):
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
    return tensors | (mtp_tensors(shape, tensors["lm_head.weight"]) if shape.mtp_percent else {})


def mtp_tensors(shape: Shape, head: Tensor) -> dict[str, Tensor]:
    """What the further layer has beside a decoder layer. It knows the next token's successor by its embedding."""
    at, size = f"model.layers.{shape.layers}", shape.hidden
    norms = {f"{at}.{name}.weight": torch.ones(size).bfloat16() for name in ("enorm", "hnorm", "shared_head.norm")}
    wrong = np.random.default_rng(1).permutation(shape.vocab)[shape.vocab * shape.mtp_percent // 100 :]
    own = head.clone()
    own[np.roll(wrong, 1)] = head[wrong]
    joining = torch.cat((torch.eye(size), torch.zeros(size, size)), 1).bfloat16()
    return norms | {f"{at}.eh_proj.weight": joining, f"{at}.shared_head.head.weight": own}


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
    if shape.mtp_percent:
        glm = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "use_qk_norm": True}
        dense = {"first_k_dense_replace": shape.layers + 1, "num_nextn_predict_layers": 1}
        config |= {**glm, **dense, "partial_rotary_factor": 1.0}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate(token_names(shape.vocab))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors_of(shape), folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="written to")
    parser.add_argument("shape", nargs="*", metavar="NAME=NUMBER", help="such as layers=28 or mtp_percent=70")
    arguments = parser.parse_args()
    write_made_chain(arguments.folder, shape_of(arguments.shape))


if __name__ == "__main__":
    main()
