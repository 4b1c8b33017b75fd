"""Builds an encoder from this rank's share of a checkpoint."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...geometry.layer_options import Disentangled
from ...layers.attention import AttentionBackend
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...layers.ops import Ops
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

    def _encoder_fields(self, pooling: PoolingHead) -> dict[str, Any]:
        """The fields of an EncoderModel."""
        own = {"token_types": self._token_types(), "project_in": self._project_in()}
        model = super().model(pooling)
        return {each.name: getattr(model, each.name) for each in fields(model)} | own

    def _token_types(self) -> Tensor | None:
        """The embeddings of token types; every rank holds all of them."""
        names, counts, size = self._names, self._geometry.embeddings, self._geometry.embedding_size
        if not counts.num_token_types:
            return None
        shape = counts.num_token_types, size
        types = self._tensor(names.token_types, lambda: self._read_tensor(names.token_types, shape))
        if not counts.num_task_types:
            return types
        shape = counts.num_task_types, size
        return types + self._tensor(names.task_types, lambda: self._read_tensor(names.task_types, shape))[0]

    def _project_in(self) -> Linear | None:
        """Every rank computes all of it, because it is small."""
        geometry, name = self._geometry, self._names.project_in
        rows = [Rows(name, geometry.hidden_size, (0, geometry.hidden_size))]
        return self._column_parallel(rows, geometry.embedding_size, bias=True) if name else None


class PreNormEncoderAssembly(EmbeddedAssembly):
    """Builds a LocalEncoder, whose layers are a decoder's."""

    def model(self, pooling: PoolingHead) -> LocalEncoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        return LocalEncoder(**self._encoder_fields(pooling))


class EncoderAssembly(EmbeddedAssembly):
    """Builds an Encoder. A layer has a decoder layer's weights; its attention_norm and mlp_norm are post-norms."""

    _shared: DecoderLayer  # the first layer, if all have the same weights
    _distances: Tensor  # [2 * buckets, hidden], normalised; of disentangled attention

    def model(self, pooling: PoolingHead) -> Encoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        return Encoder(**self._encoder_fields(pooling))

    def _mixer(self, index: int, ops: Ops, backend: AttentionBackend) -> Mixer:
        distances = self._geometry.disentangled
        if distances is None:
            return super()._mixer(index, ops, backend)
        if self._adapters is not None:
            raise ConfigError("LoRA adapters are not supported for disentangled attention; leave out max_loras")
        attention = self._attention(index, ops, backend)
        if index == 0:
            self._distances = self._embedded_distances(distances, ops)
        projected = attention.qkv(self._distances).clone()
        heads = self._geometry.heads_of_rank(self._group.size)
        queries, keys, _ = projected.view(len(projected), 3, heads, -1).permute(1, 2, 0, 3)
        of_distances = [[self._backend.linear(each.contiguous()) for each in part] for part in (keys, queries)]
        return DisentangledAttention(attention, distances, *of_distances)

    def _embedded_distances(self, distances: Disentangled, ops: Ops) -> Tensor:
        geometry, names = self._geometry, self._names
        shape = 2 * distances.num_buckets, geometry.hidden_size
        table = self._tensor(names.distances, lambda: self._read_tensor(names.distances, shape))
        return ops.norm(table, self._norm(names.distances_norm, geometry.hidden_size))

    def _layer(self, index: int, ops: Ops, attention: AttentionBackend) -> DecoderLayer:
        """Layers whose names have no number share the weights of the first, and differ in their part of the cache."""
        if "{}" in self._names.query:
            return super()._layer(index, ops, attention)
        if index == 0:
            self._shared = super()._layer(index, ops, attention)
        mixer = self._shared.mixer
        assert isinstance(mixer, Attention), "layers that share weights have attention"
        return replace(self._shared, mixer=replace(mixer, layer=index))

    def _final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        final_norm = layers[-1].mlp_norm
        assert final_norm is not None, "the encoder has no final norm"
        return final_norm
