"""Builds an encoder from this rank's share of a checkpoint."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from ...layers.linear import Linear
from ...layers.norm import Norm
from ...pooling.head import PoolingHead
from ..assembly import Assembly
from ..decoder import DecoderLayer
from ..matrix_rows import Rows
from .encoder import Encoder
from .local_encoder import LocalEncoder


class PreNormEncoderAssembly(Assembly):
    """Builds a LocalEncoder, whose layers are a decoder's."""

    def model(self, pooling: PoolingHead) -> LocalEncoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        return LocalEncoder(**self._model_fields(pooling))

    def _model_fields(self, pooling: PoolingHead) -> dict[str, Any]:
        """The fields of an EncoderModel."""
        own = {"token_types": self._token_types(), "project_in": self._project_in()}
        model = super().model(pooling)
        return {each.name: getattr(model, each.name) for each in fields(model)} | own

    def _token_types(self) -> Tensor | None:
        """The embeddings of token types; every rank holds all of them."""
        geometry, names = self._geometry, self._names
        if not geometry.num_token_types:
            return None
        shape = geometry.num_token_types, geometry.embedding_size
        types = self._tensor(names.token_types, lambda: self._read_tensor(names.token_types, shape))
        if not geometry.num_task_types:
            return types
        shape = geometry.num_task_types, geometry.embedding_size
        return types + self._tensor(names.task_types, lambda: self._read_tensor(names.task_types, shape))[0]

    def _project_in(self) -> Linear | None:
        """Every rank computes all of it, because it is small."""
        geometry, name = self._geometry, self._names.project_in
        rows = [Rows(name, geometry.hidden_size, (0, geometry.hidden_size))]
        return self._column_parallel(rows, geometry.embedding_size, bias=True) if name else None


class EncoderAssembly(PreNormEncoderAssembly):
    """Builds an Encoder. A layer has a decoder layer's weights; its attention_norm and mlp_norm are post-norms."""

    def model(self, pooling: PoolingHead) -> Encoder:  # type: ignore[override]
        return Encoder(**self._model_fields(pooling))

    def _final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        final_norm = layers[-1].mlp_norm
        assert final_norm is not None, "the encoder has no final norm"
        return final_norm
