"""Tiny random models without an output head, written and run by transformers: the reference for vectors."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..tiny_models.checkpoints import SHAPE, randomise


def write_reference(
    folder: Path, name: str, options: dict[str, Any], dtype: torch.dtype = torch.float32, **save: Any
) -> Any:
    """Write a random model of transformers' class `name` in `dtype`, and return its float32 model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        cls = getattr(transformers, name)
        own = {key: value for key, value in SHAPE.items() if not name.startswith("GPT2")}
        given = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 199} if name.startswith("GPT2") else {}
        config = cls.config_class(**{**own, **given, **options}, attn_implementation="eager")
        model = cls(config).eval()
        randomise(model)
        model.to(dtype).save_pretrained(folder, **save)
        if dtype == torch.float32:
            return model
        return cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def add_modules(folder: Path, mode: str, *more: str) -> None:
    """Write the files of sentence-transformers: pooling by `mode`, then the modules `more`."""
    names = ("Transformer", "Pooling", *more)
    paths = ("", *(f"{index}_{name}" for index, name in enumerate(names[1:], start=1)))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    fields = {f"pooling_mode_{each}": each == mode for each in modes} | {"word_embedding_dimension": 64}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))


@torch.no_grad()
def hidden_states(model: Any, prompt: list[int], **inputs: Any) -> NDArray[np.float32]:
    """The hidden states after the last layer and norm, [tokens, hidden]."""
    base = getattr(model, "base_model", model)
    return base(torch.tensor([prompt]), **inputs).last_hidden_state[0].numpy()


@torch.no_grad()
def label_scores(model: Any, prompt: list[int], **inputs: Any) -> NDArray[np.float32]:
    """The scores [labels], before any activation."""
    return model(torch.tensor([prompt]), **inputs).logits[0].numpy()


def assert_near(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Assert that the rows have nearly the same directions."""
    found, expected = np.atleast_2d(found).astype(np.float64), np.atleast_2d(expected).astype(np.float64)
    assert found.shape == expected.shape
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert (cosines >= 0.9999).all(), cosines
    clear = np.abs(expected) > 1e-5 * np.abs(expected).max()
    assert (np.sign(found) == np.sign(expected))[clear].all()
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
