"""The tables of a target that its head uses as well."""

from pathlib import Path

from paged_serve.protocol.messages.config import ModelConfig

from ...checkpoint.gguf.gguf_checkpoint import open_checkpoint
from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.safetensors_files import Checkpoint
from ...distributed.tensor_parallel import TensorParallelGroup
from ...layers.backend import Backend
from ...layers.embedding import VocabularyEmbedding
from ...quantization.source import matrix_source
from ..decoder import Model
from ..registry import read_geometry


def target_embedding(
    folder: Path, config: ModelConfig, target: Model, backend: Backend
) -> tuple[VocabularyEmbedding, int]:
    """The target's table, from its `folder` if a head must not share it, and the bytes of such a copy."""
    if target.tp_size == 1:
        return target.embedding.without_adapters, 0
    checkpoint = open_checkpoint(folder, target.dtype)
    try:
        family, _ = read_geometry(folder, config.dtype, config.max_model_len, config.plugins)
        name = family.weight_names.found_in(checkpoint.entries).embedding
        return read_embedding(checkpoint, name, config, target, backend, target.geometry.multipliers.embedding)
    finally:
        checkpoint.close()


def read_embedding(
    checkpoint: Checkpoint, name: str, config: ModelConfig, target: Model, backend: Backend, multiplier: float = 1.0
) -> tuple[VocabularyEmbedding, int]:
    """The table `name` of the size of the target's, whole, with its bytes."""
    geometry = target.geometry
    part = MatrixPart((geometry.vocab_size, geometry.hidden_size), 0, 0, geometry.vocab_size)
    source = matrix_source(checkpoint.folder, checkpoint, config, target.dtype)
    stored = source.tables.read(name.removesuffix(".weight"), part)
    table = backend.table(backend.accepted(stored, target.dtype), multiplier=multiplier)
    return VocabularyEmbedding(table, TensorParallelGroup()), stored.nbytes
