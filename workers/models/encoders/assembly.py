"""Builds an encoder from this rank's share of a checkpoint."""

from collections.abc import Sequence
from dataclasses import fields

from torch import Tensor

from ...checkpoint.conversion import converted
from ...layers.norm import Norm
from ...pooling.head import PoolingHead
from ..assembly import Assembly
from ..decoder import DecoderLayer
from .encoder import Encoder
from .local_encoder import LocalEncoder


class EncoderAssembly(Assembly):
    """Builds an Encoder. A layer has a decoder layer's weights; its attention_norm and mlp_norm are post-norms."""

    def model(self, pooling: PoolingHead) -> Encoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        token_types = self._token_types() if self._geometry.num_token_types else None
        model = super().model(pooling)
        return Encoder(**{each.name: getattr(model, each.name) for each in fields(model)}, token_types=token_types)

    def _final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        final_norm = layers[-1].mlp_norm
        assert final_norm is not None, "the encoder has no final norm"
        return final_norm

    def _token_types(self) -> Tensor:
        """The embeddings of token types; every rank holds all of them."""
        return self._tensor(self._names.token_types, self._read_token_types)

    def _read_token_types(self) -> Tensor:
        geometry, name = self._geometry, self._names.token_types
        table = self._checkpoint.read(name, (geometry.num_token_types, geometry.hidden_size))
        held = converted(name, table, geometry.dtype).to(self._device)
        self._loaded(held.nbytes)
        return held


class PreNormEncoderAssembly(Assembly):
    """Builds a LocalEncoder, whose layers are a decoder's."""

    def model(self, pooling: PoolingHead) -> LocalEncoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        model = super().model(pooling)
        return LocalEncoder(**{each.name: getattr(model, each.name) for each in fields(model)})
