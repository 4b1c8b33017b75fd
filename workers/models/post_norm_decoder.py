"""Decoders that normalise after each addition (post-norm), as OPT 350M does, with projections around the layers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..batch.input_batch import InputBatch
from ..kv.kv_cache import KVCache
from ..layers.linear import Linear
from ..layers.norm import Norm
from ..pooling.head import PoolingHead
from .assembly import Assembly
from .decoder import DecoderLayer, Model
from .matrix_rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class PostNormDecoder(Model):
    """A Model with learned positions, whose layers normalise after each addition; there is no norm at the end."""

    project_in: Linear | None  # of each token's embedding, before its position is added; None: sizes are equal
    project_out: Linear | None  # of the last layer's hidden states

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Vectors for the output head, [returned tokens, vector_size]. Writes the tokens' K and V to `cache`."""
        ops, hidden = self.ops, self._embedded(batch)
        for layer, step in zip(self.layers, self._steps_of_layers(batch, cache), strict=True):
            assert layer.attention_norm is not None
            assert layer.mlp_norm is not None
            mixed, hidden = layer.mixer(step, hidden), step.returned(hidden)
            ops.add(hidden, mixed)
            ops.norm(hidden, layer.attention_norm, out=hidden)
            assert layer.feed_forward is not None
            ops.add(hidden, layer.feed_forward(hidden))
            ops.norm(hidden, layer.mlp_norm, out=hidden)
        return hidden if self.project_out is None else self.project_out(hidden)

    def _embedded(self, batch: InputBatch) -> Tensor:
        """The sum of each token's position and its own embedding, [tokens, hidden], in the positions' memory."""
        assert self.positions is not None, "the decoder has no learned positions"
        hidden, embedded = self.positions.rows(batch.positions), self.embedding(batch.token_ids)
        self.ops.add(hidden, embedded if self.project_in is None else self.project_in(embedded))
        return hidden


class PostNormAssembly(Assembly):
    """Builds a PostNormDecoder; a layer's attention_norm and mlp_norm follow the additions."""

    def model(self, pooling: PoolingHead) -> PostNormDecoder:
        """Raises ConfigError naming a tensor that is missing, misshapen or unexplained."""
        geometry, names = self._reader.geometry, self._reader.names
        project_in = self._projection(names.project_in, geometry.hidden_size, geometry.vector_size)
        project_out = self._projection(names.project_out, geometry.vector_size, geometry.hidden_size)
        model = super().model(pooling)
        own = {each.name: getattr(model, each.name) for each in fields(model)}
        return PostNormDecoder(**own, project_in=project_in, project_out=project_out)

    def final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        """The last layer's own."""
        final_norm = layers[-1].mlp_norm
        assert final_norm is not None, "the decoder has no final norm"
        return final_norm

    def _projection(self, name: str, outputs: int, inputs: int) -> Linear | None:
        """Every rank computes all of it, because it is small."""
        return self._reader.column_parallel([Rows(name, outputs, (0, outputs))], inputs, bias=False) if name else None
