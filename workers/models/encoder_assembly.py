"""Builds an encoder from this rank's share of a checkpoint."""

from dataclasses import replace

from torch import Tensor

from ..checkpoint.conversion import converted
from ..pooling.head import PoolingHead
from .assembly import Assembly
from .encoder import Encoder


class EncoderAssembly(Assembly):
    """Builds an Encoder. A layer has a decoder layer's weights; its attention_norm and mlp_norm are post-norms."""

    def model(self, pooling: PoolingHead) -> Encoder:
        """Raises ConfigError naming a tensor that is missing, misshapen or unexplained."""
        geometry, names = self._geometry, self._names
        embedding, head = self._vocabulary()
        positions = self._positions()
        token_types = self._token_types() if geometry.num_token_types else None
        embedding_norm = self._norm(names.embedding_norm, geometry.hidden_size)
        heads = self._heads()
        attention, ops = self._backend.attention(heads), self._backend.ops(heads)
        layers = [self._layer(index, ops) for index in range(geometry.num_layers)]
        final_norm = layers[-1].mlp_norm
        assert final_norm is not None, "norms come last in an encoder"
        facts = self._finish(names.unused)
        self._on_progress(self._checkpoint.total_bytes, self._checkpoint.total_bytes)
        return Encoder(
            geometry=replace(geometry, head_multiple=attention.head_multiple),
            tp_size=self._group.size,
            backend=self._backend,
            embedding=embedding,
            positions=positions,
            layers=layers,
            final_norm=final_norm,
            output_head=head,
            ops=ops,
            attention=attention,
            weights_bytes=self._loaded_bytes,
            quantization=facts,
            pooling=pooling,
            embedding_norm=embedding_norm,
            token_types=token_types,
        )

    def _token_types(self) -> Tensor:
        """The embeddings of token types; every rank holds all of them."""
        return self._tensor(self._names.token_types, self._read_token_types)

    def _read_token_types(self) -> Tensor:
        geometry, name = self._geometry, self._names.token_types
        table = self._checkpoint.read(name, (geometry.num_token_types, geometry.hidden_size))
        held = converted(name, table, geometry.dtype).to(self._device)
        self._loaded(held.nbytes)
        return held
