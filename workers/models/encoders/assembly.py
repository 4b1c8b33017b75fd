"""Builds an encoder from this rank's share of a checkpoint."""

from collections.abc import Sequence
from dataclasses import fields

from torch import Tensor

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
        name, shape = self._names.token_types, (self._geometry.num_token_types, self._geometry.hidden_size)
        return self._tensor(name, lambda: self._read_tensor(name, shape))


class PreNormEncoderAssembly(Assembly):
    """Builds a LocalEncoder, whose layers are a decoder's."""

    def model(self, pooling: PoolingHead) -> LocalEncoder:
        """Build the encoder. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        model = super().model(pooling)
        return LocalEncoder(**{each.name: getattr(model, each.name) for each in fields(model)})
