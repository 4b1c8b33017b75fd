"""The encoder that BERT and its like are instances of: tokens see each other in both directions, norms come last."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..batch.input_batch import InputBatch
from ..kv.cache_view import CacheView
from ..kv.kv_cache import KVCache
from ..layers.norm import Norm
from .decoder import Model


@dataclass(frozen=True, slots=True, eq=False)
class Encoder(Model):
    """A Model that gives vectors. Each layer's norms are of the sum with what attention, or the feed-forward, adds."""

    embedding_norm: Norm
    token_types: Tensor | None  # [types, hidden]: a vector is added to each token by its type; None: there are no types

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, [tokens, hidden]. The batch has whole prompts, each in one chunk."""
        geometry, ops, attention = self.geometry, self.ops, self.attention
        view = CacheView.of(batch, cache)
        plan = attention.plan(seeing_all(view), geometry.heads_of_rank(self.tp_size))
        step = ops.start_step(view)
        hidden = self._embedded(batch)
        normed = ops.norm(hidden, self.embedding_norm)
        for index, layer in enumerate(self.layers):
            query = ops.rotate_and_cache(step, index, layer.qkv(normed), None, None)
            mixed = layer.output(attention.attend(plan, index, query, geometry.scale, 0).flatten(1))
            hidden.copy_(normed)
            normed = ops.add_norm(hidden, mixed, layer.attention_norm)
            changed = layer.down(ops.activate(layer.gate_up(normed), geometry.activation))
            hidden.copy_(normed)
            normed = ops.add_norm(hidden, changed, layer.mlp_norm)
        return normed

    def _embedded(self, batch: InputBatch) -> Tensor:
        """The sum of a token's, its type's and its position's vectors, [tokens, hidden]."""
        hidden = self.embedding(batch.token_ids)
        if self.token_types is not None:
            types = torch.zeros_like(batch.token_ids) if batch.token_types is None else batch.token_types
            hidden.add_(self.token_types.index_select(0, types))
        assert self.positions is not None, "an encoder without learned positions"
        return hidden.add_(self.positions.rows(batch.positions))


def seeing_all(view: CacheView) -> CacheView:
    """`view` with a row for each token, as if it were the prompt's last: so it sees all of the prompt.

    An attention backend lets a token see what is before it. A row's keys are written before any token of it attends.
    """
    counts = view.row_starts.diff()
    return replace(
        view,
        block_tables=view.block_tables.repeat_interleave(counts, dim=0),
        row_starts=torch.arange(len(view.positions) + 1, dtype=torch.int32, device=view.row_starts.device),
        kv_lens=view.kv_lens.repeat_interleave(counts),
        num_decode_rows=len(view.positions),
    )
