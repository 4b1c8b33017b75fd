"""BERT-style encoders: bidirectional attention and post-norms, with learned positions or rotated heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kv.kv_cache import KVCache
from ..decoder import Model


@dataclass(frozen=True, slots=True, eq=False)
class Encoder(Model):
    """A Model that returns vectors. Its layers normalise after each residual addition (post-norm)."""

    token_types: Tensor | None  # [types, hidden]; each token adds the row of its type; None: there are no types

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, [tokens, hidden]. The batch has whole prompts, each in one chunk."""
        ops = self.ops
        [step] = self._steps(batch, cache)
        hidden = self._embedded(batch)
        assert self.embedding_norm is not None, "the encoder has no norm of its embeddings"
        normed = ops.norm(hidden, self.embedding_norm)
        for layer in self.layers:
            mixed = layer.mixer(step, normed)
            hidden.copy_(normed)
            normed = self._sum(hidden, mixed, layer.attention_norm)
            assert layer.feed_forward is not None
            changed = layer.feed_forward(normed)
            hidden.copy_(normed)
            normed = self._sum(hidden, changed, layer.mlp_norm)
        return normed

    def _embedded(self, batch: InputBatch) -> Tensor:
        """The sum of each token's own, type and position embeddings, [tokens, hidden]."""
        hidden = self.embedding(batch.token_ids)
        if self.token_types is not None:
            types = torch.zeros_like(batch.token_ids) if batch.token_types is None else batch.token_types
            hidden.add_(self.token_types.index_select(0, types))
        return hidden if self.positions is None else hidden.add_(self.positions.rows(batch.positions))
