"""Loads the head for multi-token prediction of a target's own checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ...backends.cpu.backend import CpuBackend
from ...backends.torch.backend import SingleRowsBackend
from ...checkpoint.gguf.gguf_checkpoint import open_checkpoint
from ...checkpoint.hf_config import read_architectures
from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.text_part import stored_name
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.geometry import Geometry
from ...kernels.cpu.library import Pool
from ...layers.backend import Backend
from ...layers.embedding import OutputHead, VocabularyEmbedding
from ...quantization.source import matrix_source
from ..assembly import Assembly
from ..catalogue import FAMILIES
from ..decoder import Model
from ..families.family import FULL, Family
from ..names.mtp_names import DECODER_LAYER, MtpNames
from ..readers.layer_reader import LayerReader
from ..registry import families_with, family_of, geometry_of
from .mtp import MtpHead


def load_mtp(folder: Path, config: ModelConfig, target: Model, pool: Pool | None) -> MtpHead:
    """The head of `target`, whose folder and configuration these are: whole, on the threads of `pool` or with torch.

    Raises ConfigError, with the tensor's name, if the checkpoint holds no such layer, or another than expected.
    """
    family, _ = family_of(read_architectures(folder), families_with(config.plugins))
    if (names := family.mtp) is None:
        supported = ", ".join(name for each in FAMILIES if each.mtp for name in each.architectures)
        raise ConfigError(
            f"layers for multi-token prediction of {family.name} are not supported; those of {supported} are"
        )
    index = target.geometry.num_layers if names.follows_last else 0
    geometry = _geometry(folder, family, index + 1, config, target)
    checkpoint = open_checkpoint(folder, target.dtype)
    try:
        names, own_names = names.found_in(checkpoint.entries), family.weight_names.found_in(checkpoint.entries)
        beginning = names.every.format(index)
        if not any(name.startswith(beginning) for name in checkpoint.entries):
            raise ConfigError(
                f"{folder} has no tensor {names.joining.format(index)}.weight, nor any other of a layer for "
                "multi-token prediction: it was saved without"
            )
        of_target = tuple(_stem(name) for name in (own_names.embedding, own_names.output_head))
        of_layer = stored_name(DECODER_LAYER, checkpoint.entries)
        own_names = replace(own_names.begun(of_layer, names.layer), unused_prefixes=of_target)
        checkpoint.keep((beginning, *of_target))
        backend: Backend = SingleRowsBackend() if pool is None else CpuBackend(pool)
        source = matrix_source(folder, checkpoint, config, geometry.dtype, pool)
        group = TensorParallelGroup()
        assembly = MtpAssembly(
            LayerReader(checkpoint, source, own_names, geometry, group, backend, lambda done, total: None)
        )
        return assembly.head(names, index, target)
    finally:
        checkpoint.close()


class MtpAssembly(Assembly):
    """Builds a head from its checkpoint."""

    def head(self, names: MtpNames, index: int, target: Model) -> MtpHead:
        """Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        reader = self._reader
        size = reader.geometry.hidden_size
        norms = [
            reader.norm(name.format(index), size)
            for name in (names.embedding_norm, names.hidden_norm, names.final_norm)
        ]
        part = MatrixPart((size, 2 * size), 0, 0, size)
        joining = reader.matrix(reader.source.stored, names.joining.format(index), part)
        layer = self.layer(index)
        embedding = self._embedding(names.embedding.format(index), target)
        output_head = self._head(names.output_head.format(index), target)
        self.finish(reader.names.unused)
        return MtpHead(
            geometry=replace(
                reader.geometry, num_layers=1, recurrent=(), head_multiple=self._attention_backend.head_multiple
            ),
            tapped=(target.geometry.num_layers,),
            index=index,
            embedding=embedding,
            embedding_norm=norms[0],
            hidden_norm=norms[1],
            joining=reader.backend.linear(joining),
            layer=layer,
            final_norm=norms[2],
            output_head=output_head,
            ops=self._ops,
            attention_backend=self._attention_backend,
            weights_bytes=reader.loaded_bytes,
        )

    def _embedding(self, own: str, target: Model) -> VocabularyEmbedding:
        reader = self._reader
        is_own = self._differs(own, shared := reader.names.embedding)
        if not is_own and target.tp_size == 1:
            return target.embedding.without_adapters
        return VocabularyEmbedding(
            reader.backend.table(self._vocabulary.table(own if is_own else shared)), reader.group
        )

    def _head(self, own: str, target: Model) -> OutputHead:
        reader = self._reader
        shared = reader.names.output_head
        if shared not in reader.checkpoint.entries and target.geometry.tie_word_embeddings:
            shared = reader.names.embedding
        is_own = self._differs(own, shared)
        if not is_own and target.tp_size == 1 and target.adapters is None and target.output_head is not None:
            return target.output_head
        return self._vocabulary.output_head(
            reader.backend.head(self._vocabulary.head_matrix(own if is_own else shared))
        )

    def _differs(self, own: str, shared: str) -> bool:
        """Whether the file has a table of the head's own: some repeat the target's, which need not be loaded twice."""
        reader = self._reader
        if own not in reader.checkpoint.entries:
            return False
        if shared not in reader.checkpoint.entries:
            return True
        geometry = reader.geometry
        shape = geometry.vocab_size, geometry.hidden_size
        one, other = (reader.checkpoint.read(name, shape).to(geometry.dtype) for name in (own, shared))
        return not torch.equal(one, other)


def _geometry(folder: Path, family: Family, count: int, config: ModelConfig, target: Model) -> Geometry:
    """That of a decoder of `count` layers, the last of which is the head's: with attention, as all heads have it."""

    def fields(found: dict[str, Any]) -> dict[str, Any]:
        return family.config(found | {"num_hidden_layers": count, "layer_types": [FULL] * count})

    dtype = str(target.dtype).removeprefix("torch.")
    return geometry_of(folder, replace(family, config=fields), "tokens", dtype, config.max_model_len)[1]


def _stem(name: str) -> str:
    return name.removesuffix("weight")
