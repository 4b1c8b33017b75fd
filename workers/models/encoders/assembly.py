"""Builds an encoder from this rank's share of a checkpoint."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...geometry.layer_options import Disentangled
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...mixers.attention import Attention
from ...mixers.mixer import Mixer
from ...pooling.head import PoolingHead
from ..assembly import Assembly
from ..decoder import DecoderLayer
from ..matrix_rows import Rows
from .disentangled import DisentangledAttention
from .encoder import Encoder
from .local_encoder import LocalEncoder


class EmbeddedAssembly(Assembly):
    """Reads what encoders have before their first layer."""

    def encoder_fields(self, pooling: PoolingHead) -> dict[str, Any]:
        """The fields of an EncoderModel."""
        own = {"token_types": self._token_types(), "project_in": self._project_in()}
        model = super().model(pooling)
        return {each.name: getattr(model, each.name) for each in fields(model)} | own

    def _token_types(self) -> Tensor | None:
        """The embeddings of token types; every rank holds all of them."""
        reader = self._reader
        names, counts, size = reader.names, reader.geometry.embeddings, reader.geometry.embedding_size
        if not counts.num_token_types:
            return None
        shape = counts.num_token_types, size
        types = reader.tensor(names.token_types, lambda: reader.read_tensor(names.token_types, shape))
        if not counts.num_task_types:
            return types
        shape = counts.num_task_types, size
        return types + reader.tensor(names.task_types, lambda: reader.read_tensor(names.task_types, shape))[0]

    def _project_in(self) -> Linear | None:
        """Every rank computes all of it, because it is small."""
        reader = self._reader
        geometry, name = reader.geometry, reader.names.project_in
        rows = [Rows(name, geometry.hidden_size, (0, geometry.hidden_size))]
        return reader.column_parallel(rows, geometry.embedding_size, bias=True) if name else None


class PreNormEncoderAssembly(EmbeddedAssembly):
    """Builds a LocalEncoder, whose layers are a decoder's."""

    def model(self, pooling: PoolingHead) -> LocalEncoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        return LocalEncoder(**self.encoder_fields(pooling))


class EncoderAssembly(EmbeddedAssembly):
    """Builds an Encoder. A layer has a decoder layer's weights; its attention_norm and mlp_norm are post-norms."""

    _shared: DecoderLayer  # the first layer, if all have the same weights
    _distances: Tensor  # [2 * buckets, hidden], normalised; of disentangled attention

    def model(self, pooling: PoolingHead) -> Encoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        return Encoder(**self.encoder_fields(pooling))

    def mixer(self, index: int) -> Mixer:
        reader = self._reader
        distances = reader.geometry.disentangled
        if distances is None:
            return super().mixer(index)
        if reader.adapters is not None:
            raise ConfigError("LoRA adapters are not supported for disentangled attention; leave out max_loras")
        attention = self._attention.attention(index)
        if index == 0:
            self._distances = self._embedded_distances(distances)
        projected = attention.qkv(self._distances).clone()
        heads = reader.geometry.heads_of_rank(reader.group.size)
        queries, keys, _ = projected.view(len(projected), 3, heads, -1).permute(1, 2, 0, 3)
        of_distances = [[reader.backend.linear(each.contiguous()) for each in part] for part in (keys, queries)]
        return DisentangledAttention(attention, distances, *of_distances)

    def _embedded_distances(self, distances: Disentangled) -> Tensor:
        reader = self._reader
        geometry, names = reader.geometry, reader.names
        shape = 2 * distances.num_buckets, geometry.hidden_size
        table = reader.tensor(names.distances, lambda: reader.read_tensor(names.distances, shape))
        return self._ops.norm(table, reader.norm(names.distances_norm, geometry.hidden_size))

    def layer(self, index: int) -> DecoderLayer:
        """Layers whose names have no number share the weights of the first, and differ in their part of the cache."""
        if "{}" in self._reader.names.query:
            return super().layer(index)
        if index == 0:
            self._shared = super().layer(index)
        mixer = self._shared.mixer
        assert isinstance(mixer, Attention), "layers that share weights have attention"
        return replace(self._shared, mixer=replace(mixer, layer=index))

    def final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        final_norm = layers[-1].mlp_norm
        assert final_norm is not None, "the encoder has no final norm"
        return final_norm
