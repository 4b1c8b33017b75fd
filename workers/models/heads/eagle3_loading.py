"""Loads EAGLE-3 heads from the folders in which they are published, for the target that they were trained with."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file
from paged_serve.protocol.messages.config import ModelConfig

from ...backends.cpu.backend import CpuBackend
from ...backends.torch.backend import SingleRowsBackend
from ...checkpoint.gguf.gguf_checkpoint import open_checkpoint
from ...checkpoint.hf_config import read_architectures
from ...checkpoint.safetensors_files import Checkpoint
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.geometry import Geometry
from ...geometry.model_options import Biases
from ...kernels.cpu.library import Pool
from ...layers.backend import Backend
from ...layers.embedding import VocabularyEmbedding
from ...layers.linear import Linear
from ...quantization.source import matrix_source
from ..assembly import Assembly
from ..decoder import Model
from ..families.family import Family
from ..matrix_rows import Rows, query_key_value_rows
from ..names.weight_names import WeightNames
from ..readers.attention_reader import AttentionReader
from ..readers.layer_reader import LayerReader
from ..readers.recurrent.recurrent_parts import RecurrentParts
from ..registry import geometry_of
from .eagle3 import Eagle3Head
from .tables import read_embedding, target_embedding

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
LAYERS = ("midlayer.", "layers.0.")  # beginnings of the names of the layer's tensors
MIN_TARGET_LAYERS = 4  # of which the head reads the inputs of three
TABLE = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The fields of a head's config.json that a decoder does not have."""

    draft_vocab_size: int
    normalises_residual: bool


def tapped_layers(num_layers: int) -> tuple[int, int, int]:
    """The target's layers whose inputs the head reads."""
    return 2, num_layers // 2, num_layers - 3


def load_eagle3(folder: Path, target_folder: Path, config: ModelConfig, target: Model, pool: Pool | None) -> Eagle3Head:
    """The head in `folder`, whole, in the target's dtype. It computes on the threads of `pool`, or with torch.

    It looks tokens up in its own table, or else in that of the target, whose configuration is `config`. Raises
    ConfigError, with the found and the required values, if the folder holds no such head, or one for another target.
    """
    own = _head_config(folder)
    own_config = structs.replace(config, model=str(folder), tokenizer="", packed_weights_dir="")
    _check_target(target)
    checkpoint = open_checkpoint(folder, target.dtype)
    try:
        names = _names(checkpoint)
        family = Family("eagle3", ARCHITECTURES, names, biases=lambda fields: Biases(qkv=fields.attention_bias))
        dtype = str(target.dtype).removeprefix("torch.")
        _, geometry = geometry_of(folder, family, "tokens", dtype)
        _check(geometry, target.geometry, own)
        geometry = replace(geometry, vocab_size=own.draft_vocab_size, tie_word_embeddings=False)
        backend: Backend = SingleRowsBackend() if pool is None else CpuBackend(pool)
        source = matrix_source(folder, checkpoint, own_config, geometry.dtype, pool)
        group = TensorParallelGroup()
        assembly = Eagle3Assembly(
            LayerReader(checkpoint, source, names, geometry, group, backend, lambda done, total: None)
        )
        if TABLE in checkpoint.entries:
            embedding, table_bytes = read_embedding(checkpoint, TABLE, own_config, target, backend)
        else:
            embedding, table_bytes = target_embedding(target_folder, config, target, backend)
        return assembly.head(embedding, table_bytes, target.geometry, own.normalises_residual)
    finally:
        checkpoint.close()


class JoinedInputsReader(AttentionReader):
    """Queries, keys and values are projected from an embedding and a hidden state, side by side."""

    def query_key_value(self, index: int) -> Linear:
        reader = self._reader
        geometry, names = reader.geometry, reader.names
        each = names.query, names.key, names.value
        spans = (0, geometry.num_heads), (0, geometry.num_kv_heads)
        rows = query_key_value_rows(each, geometry, *spans, 0, are_grouped=False)
        return reader.column_parallel(rows, 2 * geometry.hidden_size, geometry.biases.qkv)


class Eagle3Assembly(Assembly):
    """Builds a head from its checkpoint. The geometry's vocabulary is that of drafts."""

    def __init__(self, reader: LayerReader):
        super().__init__(reader)
        self._attention = JoinedInputsReader(reader, RecurrentParts(reader), self._ops, self._attention_backend)

    def head(
        self, embedding: VocabularyEmbedding, table_bytes: int, target: Geometry, normalises_residual: bool
    ) -> Eagle3Head:
        """Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        reader = self._reader
        geometry, names, size = reader.geometry, reader.names, reader.geometry.hidden_size
        layer = self._attention.attention(0)
        feed_forward = self._feed_forward.read(0)
        assert feed_forward is not None
        head = Eagle3Head(
            geometry=replace(geometry, head_multiple=self._attention_backend.head_multiple),
            tapped=tapped_layers(target.num_layers),
            embedding=embedding,
            joining=reader.column_parallel([Rows("fc", size, (0, size))], 3 * size, False),
            embedding_norm=reader.norm(names.attention_norm, size),
            hidden_norm=reader.norm(names.attention_norm.replace("input_layernorm", "hidden_norm"), size),
            attention=layer,
            mlp_norm=reader.norm(names.mlp_norm, size),
            feed_forward=feed_forward,
            final_norm=reader.norm(names.final_norm, size),
            output_head=self._vocabulary.output_head(
                reader.backend.head(self._vocabulary.head_matrix(names.output_head))
            ),
            target_ids=self._target_ids(target.vocab_size),
            normalises_residual=normalises_residual,
            ops=self._ops,
            attention_backend=self._attention_backend,
            weights_bytes=reader.loaded_bytes + table_bytes,
        )
        self.finish(names.unused)
        return head

    def _target_ids(self, vocab_size: int) -> Tensor:
        """The file has the difference between a token's two numbers."""
        reader = self._reader
        count = reader.geometry.vocab_size
        if "d2t" not in reader.checkpoint.entries:
            if count == vocab_size:
                return torch.arange(count)
            raise ConfigError(
                f"{reader.checkpoint.folder} has no tensor d2t, which maps its {count} draft tokens to the model's "
                f"{vocab_size}"
            )
        found = torch.arange(count) + reader.checkpoint.read("d2t", (count,), dtypes=("I64", "I32")).long()
        low, high = int(found.min()), int(found.max())
        if not 0 <= low <= high < vocab_size:
            raise ConfigError(
                f"{reader.checkpoint.folder}: tensor d2t maps draft tokens to {low} to {high}, but the model's tokens "
                f"are 0 to {vocab_size - 1}"
            )
        return found


def _head_config(folder: Path) -> HeadConfig:
    architectures = read_architectures(folder)
    if not set(architectures) & {*ARCHITECTURES}:
        named = ", ".join(architectures)
        raise ConfigError(f"architecture {named} is not an EAGLE-3 head; supported: {', '.join(ARCHITECTURES)}")
    fields: dict[str, Any] = read_json_file(folder / "config.json", dict[str, Any])
    eagle = fields.get("eagle_config") or {}
    if layers := eagle.get("eagle_aux_hidden_state_layer_ids") or fields.get("eagle_aux_hidden_state_layer_ids"):
        raise ConfigError(
            f"config.json: eagle_aux_hidden_state_layer_ids={layers} is not supported; heads read the inputs of the "
            "layers 2, n / 2 and n - 3 of n"
        )
    if eagle.get("use_aux_hidden_state") is False:
        raise ConfigError("config.json: use_aux_hidden_state=false is not supported; heads read three hidden states")
    if fields.get("num_hidden_layers") != 1:
        raise ConfigError(f"config.json: num_hidden_layers={fields.get('num_hidden_layers')!r} must be 1 in a head")
    size = fields.get("draft_vocab_size") or fields.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"config.json: draft_vocab_size={size!r} must be at least 1")
    return HeadConfig(size, fields.get("norm_before_residual") is True)


def _check_target(target: Model) -> None:
    if target.geometry.num_layers < MIN_TARGET_LAYERS:
        raise ConfigError(
            f"the model has {target.geometry.num_layers} layers, but an EAGLE-3 head reads it at the inputs of three, "
            f"so it needs {MIN_TARGET_LAYERS} or more"
        )


def _check(head: Geometry, target: Geometry, own: HeadConfig) -> None:
    for name in ("hidden_size", "vocab_size"):
        if (one := getattr(head, name)) != (other := getattr(target, name)):
            raise ConfigError(f"config.json: {name}={one}, but the model has {other}; give a head made for this model")
    if own.draft_vocab_size > head.vocab_size:
        raise ConfigError(
            f"config.json: draft_vocab_size={own.draft_vocab_size} is more than vocab_size={head.vocab_size}"
        )


def _names(checkpoint: Checkpoint) -> WeightNames:
    layer = next((each for each in LAYERS if any(name.startswith(each) for name in checkpoint.entries)), LAYERS[0])
    names = WeightNames(embedding=TABLE, final_norm="norm.weight")
    of_layer = ("attention_norm", "mlp_norm", "query", "key", "value", "output", "gate", "up", "down")
    changes: dict[str, Any] = {name: getattr(names, name).replace("model.layers.{}.", layer) for name in of_layer}
    return replace(names, unused=(*names.unused, "t2d", TABLE), **changes)
