"""Tiny random models that run through transformers, as it writes them; some have a family here, too."""

import warnings
from pathlib import Path
from typing import Any

import torch

from paged_serve.workers.models import registry

from .checkpoints import SHAPE, randomise, transformers_model

WIDE = SHAPE | {"hidden_size": 128, "intermediate_size": 128, "vocab_size": 256}
WINDOWS = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
SCALED = {"rope_theta": 10000.0, "original_max_position_embeddings": 64, "max_position_embeddings": 512}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Apertus": {},  # xIELU, a norm per head
    "Arcee": {},  # squared ReLU
    "BitNet": {},  # norms inside attention and feed-forward
    "Cwm": {"head_dim": 32, **WINDOWS},
    "Ernie4_5": {},  # interleaved rotation
    "HunYuanDenseV1": {"head_dim": 32},
    "HyperCLOVAX": {},  # multipliers, post-norms
    "Jais2": {},  # layer norms
    "Ministral": {"head_dim": 32, **WINDOWS},
    # queries scaled by position
    "Ministral3": {
        "head_dim": 32,
        "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "llama_4_scaling_beta": 0.1, **SCALED},
    },
    "NanoChat": {},  # norms without weights
    "Nemotron": {},  # layer norms with weights stored minus 1, partial rotation
    # soft caps
    "VaultGemma": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 24, "tie_word_embeddings": False},
}


def write(name: str, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Writes a checkpoint of `name`ForCausalLM to `folder`, and returns transformers' own float32 model of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        fields = WIDE | ARCHITECTURES.get(name, {}) | options
        torch.manual_seed(3)
        model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**fields)).eval()
        randomise(model)
        model.to(dtype).save_pretrained(folder)
    return transformers_model(folder)


def write_without_family(folder: Path, monkeypatch: Any) -> None:
    """Writes a model whose family is taken away: every other one that runs through transformers has a family, too."""
    write("Apertus", folder)
    others = tuple(each for each in registry.FAMILIES if "ApertusForCausalLM" not in each.architectures)
    monkeypatch.setattr(registry, "FAMILIES", others)


def is_of_transformers(model):
    """Whether its modules are of transformers, whose import of three seconds is not for the collection of tests."""
    from paged_serve.workers.models.transformers_impl.transformers_model import TransformersModel

    return isinstance(model, TransformersModel)
