"""Puts an encoder together from this rank's share of a checkpoint."""

from dataclasses import replace

from torch import Tensor

from ..checkpoint.conversion import converted
from ..pooling.head import PoolingHead
from .assembly import Assembly
from .encoder import Encoder


class EncoderAssembly(Assembly):
    """As of a decoder, whose layers have the same weights; the norms' names say where those of a layer are."""

    def model(self, pooling: PoolingHead) -> Encoder:
        """Raises ConfigError naming a tensor that is missing, misshapen or unexplained."""
        geometry, names = self._geometry, self._names
        embedding, head = self._vocabulary()
        positions = self._positions()
        token_types = self._token_types() if geometry.num_token_types else None
        embedding_norm = self._norm(names.embedding_norm, geometry.hidden_size)
        layers = [self._layer(index) for index in range(geometry.num_layers)]
        facts = self._finish(names.unused)
        self._on_progress(self._checkpoint.total_bytes, self._checkpoint.total_bytes)
        heads = self._heads()
        attention = self._backend.attention(heads)
        return Encoder(
            geometry=replace(geometry, head_multiple=attention.head_multiple),
            tp_size=self._group.size,
            backend=self._backend,
            embedding=embedding,
            positions=positions,
            layers=layers,
            final_norm=layers[-1].mlp_norm,
            output_head=head,
            ops=self._backend.ops(heads),
            attention=attention,
            weights_bytes=self._loaded_bytes,
            quantization=facts,
            pooling=pooling,
            embedding_norm=embedding_norm,
            token_types=token_types,
        )

    def _token_types(self) -> Tensor:
        """Whole on every rank."""
        return self._tensor(self._names.token_types, self._read_token_types)

    def _read_token_types(self) -> Tensor:
        geometry, name = self._geometry, self._names.token_types
        table = self._checkpoint.read(name, (geometry.num_token_types, geometry.hidden_size))
        held = converted(name, table, geometry.dtype).to(self._device)
        self._loaded(held.nbytes)
        return held
