"""PEFT folders with random matrices, and what they do to a model's weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paged_serve.protocol.adapter_folder import adapter_digest
from paged_serve.protocol.messages.loading.adapters import Adapter

PREFIX = "base_model.model."
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
ALL_LINEAR = (*ATTENTION, *FEED_FORWARD)


@dataclass(frozen=True)
class MadeAdapter:
    folder: Path
    deltas: Mapping[str, Tensor]  # by the name of the changed weight: what is added to it, float64

    def message(self) -> Adapter:
        return Adapter(self.folder.name, str(self.folder), adapter_digest(self.folder))


def make_adapter(
    folder: Path,
    model: Path,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    targets: tuple[str, ...] = ALL_LINEAR,
    dtype: torch.dtype = torch.float32,
    scale: float = 0.1,
    **config: Any,
) -> MadeAdapter:
    """An adapter of the checkpoint `model` for modules whose names end in `targets`; `config` are further fields."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(model / "model.safetensors")
    tensors, deltas = {}, {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if not module.endswith(targets):
            continue
        own = config.get("rank_pattern", {}).get(module.rpartition(".")[2], rank)
        outputs, inputs = weight.shape
        is_table = module.endswith("embed_tokens")
        if is_table:
            outputs, inputs = inputs, outputs
        a = (torch.randn((own, inputs), generator=generator) * scale).to(dtype)
        b = (torch.randn((outputs, own), generator=generator) * scale).to(dtype)
        sides = ("lora_embedding_A", "lora_embedding_B") if is_table else ("lora_A.weight", "lora_B.weight")
        tensors |= {f"{PREFIX}{module}.{sides[0]}": a, f"{PREFIX}{module}.{sides[1]}": b}
        own_alpha = config.get("alpha_pattern", {}).get(module.rpartition(".")[2], alpha)
        product = b.double() @ a.double() * own_alpha / (own**0.5 if config.get("use_rslora") else own)
        deltas[name] = product.T if is_table else product
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(fields | config))
    return MadeAdapter(folder, deltas)


def write_merged(folder: Path, model: Path, adapter: MadeAdapter) -> Path:
    """The checkpoint `model` with the adapter added to its weights."""
    folder.mkdir()
    weights = load_file(model / "model.safetensors")
    for name, delta in adapter.deltas.items():
        weights[name] = (weights[name].double() + delta).to(weights[name].dtype)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text((model / "config.json").read_text())
    return folder
