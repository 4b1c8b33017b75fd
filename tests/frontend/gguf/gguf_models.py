"""Metadata as a model, without a file."""

from pathlib import Path
from typing import Any

from paged_serve.frontend.gguf.model import GgufModel
from paged_serve.protocol.gguf.container import GgufFile
from paged_serve.protocol.gguf.metadata import Metadata


def model_of(keys: dict[str, Any], architecture: str = "llama") -> GgufModel:
    path = Path("model.gguf")
    return GgufModel([GgufFile(path, Metadata(path, keys), {}, "")], architecture)
