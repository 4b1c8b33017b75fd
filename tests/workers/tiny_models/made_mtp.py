"""Checkpoints with a layer for multi-token prediction: random ones, and ones that know their only text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from .checkpoints import transformers_model, write_checkpoint
from .made_eagle3 import successors_first

LINEAR, FULL = "linear_attention", "full_attention"
FAMILIES: dict[str, dict[str, Any]] = {  # what their checkpoints need so that the last of their layers is the head's
    "glm4-moe": {"num_hidden_layers": 4},
    "deepseek-v3": {"num_hidden_layers": 3},
    "deepseek-v3.2": {"num_hidden_layers": 3, "index_topk": 6},
    "glm4-moe-lite": {"num_hidden_layers": 4, "mlp_layer_types": ("sparse", "dense", "sparse", "sparse")},
    "qwen3-next": {"num_hidden_layers": 5, "layer_types": (LINEAR, FULL, LINEAR, LINEAR, FULL)},
    "qwen3.5": {"num_hidden_layers": 4, "layer_types": (LINEAR, FULL, LINEAR, FULL), "tie_word_embeddings": False},
    "qwen3.5-moe": {"num_hidden_layers": 4, "layer_types": (LINEAR, FULL, LINEAR, FULL)},
}
OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")  # of mixers and feed-forwards


@dataclass
class Made:
    """A checkpoint's tensors, and the names of those of its head."""

    folder: Path
    tensors: dict[str, Tensor]
    layer: str  # the beginning of the names of the decoder layer
    embedding_norm: str
    hidden_norm: str
    joining: str
    final_norm: str
    has_own_tables: bool  # in published files

    @property
    def tables(self) -> tuple[str, str]:
        """The head's own embedding and output head, if it has any."""
        return f"{self.layer}embed_tokens.weight", f"{self.layer}shared_head.head.weight"

    @property
    def norms(self) -> tuple[str, str, str]:
        return self.embedding_norm, self.hidden_norm, self.final_norm

    @property
    def is_less_1(self) -> bool:
        """Whether files have a norm's weight minus 1."""
        return not self.has_own_tables

    def save(self) -> Path:
        save_file({name: each.contiguous() for name, each in self.tensors.items()}, self.folder / "model.safetensors")
        return self.folder


def made(family: str, folder: Path, dtype: torch.dtype = torch.bfloat16, **fields: int) -> Made:
    """A random checkpoint, saved in the form in which those of the family are published, with other `fields`."""
    layers = FAMILIES[family]["num_hidden_layers"]
    write_checkpoint(family, folder, dtype, FAMILIES[family] | fields)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": layers - 1}
    for name in ("layer_types", "mlp_layer_types"):
        if name in config:
            config[name] = config[name][: layers - 1]
    (folder / "config.json").write_text(json.dumps(config))
    tensors, last = load_file(folder / "model.safetensors"), f"model.layers.{layers - 1}."
    beginning, layer = last, last
    names = "enorm.weight", "hnorm.weight", "eh_proj", "shared_head.norm.weight"
    if is_qwen := family.startswith("qwen"):
        beginning, layer = "mtp.", "mtp.layers.0."
        names = "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "fc", "norm.weight"
    tensors = {name.replace(last, layer): each for name, each in tensors.items()}
    found = Made(folder, tensors, layer, *(beginning + name for name in names), not is_qwen)
    size, generator = config["hidden_size"], torch.Generator().manual_seed(5)
    for name in found.norms:
        tensors[name] = (1 + 0.3 * torch.randn(size, generator=generator)).to(dtype)
    joining = torch.randn(size, 2 * size, generator=generator) / size**0.5
    tensors[f"{found.joining}.weight"] = joining.to(dtype)
    if found.has_own_tables:
        shared = ("model.embed_tokens.weight", "lm_head.weight")
        tensors |= {name: tensors[other].clone() for name, other in zip(found.tables, shared, strict=True)}
    found.save()
    return found


def made_chain(family: str, folder: Path, *, reads_hidden: bool = False, **fields: int) -> Made:
    """A model in which each token has one successor, by its embedding alone, and a head that knows this text.

    The head finds the token after the next by the next token's embedding, and is always right. `reads_hidden`: by the
    target's hidden state, and only its first draft is right.
    """
    found = made(family, folder, **fields)
    tensors, dtype = found.tensors, torch.bfloat16
    for name in tensors:
        if name.endswith(OUTPUTS):
            tensors[name] = torch.zeros_like(tensors[name])
    plain = torch.zeros if found.is_less_1 else torch.ones
    for name in (*found.norms, "model.norm.weight"):
        tensors[name] = plain(len(tensors[name]), dtype=dtype)
    embeddings = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = 2 * successors_first(embeddings, 1)
    if found.has_own_tables:
        tensors[found.tables[1]] = 2 * successors_first(embeddings, 2 if reads_hidden else 1)
    one = torch.eye(embeddings.shape[1], dtype=dtype)
    zero = torch.zeros_like(one)
    tensors[f"{found.joining}.weight"] = torch.cat((zero, one) if reads_hidden else (one, zero), 1)
    found.save()
    return found


class Reference:
    """The target and its head in float32, of whole texts, without a cache.

    The decoder layers are those of transformers; what is around the head's own follows the equations of the paper.
    """

    def __init__(self, family: str, found: Made):
        """`found` in float32."""
        self.made = found
        self.num_layers = FAMILIES[family]["num_hidden_layers"] - 1
        folder = found.folder / "reference"  # the checkpoint with the head's layer as a further one
        folder.mkdir()
        write_checkpoint(family, folder, torch.float32, FAMILIES[family])
        self.model = transformers_model(folder)
        self.layers, self.norm = self.model.model.layers, self.model.model.norm.weight.clone()

    def drafts(self, tokens: list[int], count: int) -> tuple[Tensor, list[int]]:
        """The logits of `count` drafts after `tokens`, and the drafts."""
        tensors, found, logits = self.made.tensors, list[int](), list[Tensor]()
        embeddings, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
        hidden = self._run(self.layers[: self.num_layers], self.norm, embeddings[tokens])[:-1]
        for _ in range(count):
            seconds = embeddings[[*tokens[1:], *found]]
            both = self._normed(seconds, self.made.embedding_norm), self._normed(hidden, self.made.hidden_norm)
            joined = torch.cat(both, 1) @ tensors[f"{self.made.joining}.weight"].T
            out = self._run(self.layers[self.num_layers :], tensors[self.made.final_norm], joined)
            logits.append(out[-1:] @ head.T)
            found.append(int(logits[-1].argmax()))
            hidden = torch.cat((hidden, out[-1:]))
        return torch.cat(logits), found

    def _normed(self, x: Tensor, name: str) -> Tensor:
        weight = self.made.tensors[name] + self.made.is_less_1
        return functional.rms_norm(x, x.shape[-1:], weight, self.model.config.rms_norm_eps)

    def _run(self, layers: torch.nn.ModuleList, norm: Tensor, hidden: Tensor) -> Tensor:
        """Those layers of transformers' model, then its norm with other weights."""
        inner = self.model.model
        inner.layers, inner.config.num_hidden_layers = layers, len(layers)
        with torch.inference_mode():
            inner.norm.weight.copy_(norm)
            out: Tensor = inner(inputs_embeds=hidden[None], use_cache=False).last_hidden_state[0]
            return out
