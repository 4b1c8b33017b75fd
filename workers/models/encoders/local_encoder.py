"""Encoders with pre-norms, whose layers may attend within a window around each token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ..decoder import Model
from .local_attention import LocalAttention


@dataclass(frozen=True, slots=True, eq=False)
class LocalEncoder(Model):
    """A Model that returns vectors. Its layers normalise before attention and before the feed-forward (pre-norm)."""

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [tokens, hidden]. The batch has whole prompts."""
        geometry, ops, attention = self.geometry, self.ops, self.attention
        view = CacheView.of(batch, cache)
        [plan] = attention.plan([view], geometry.heads_of_rank(self.tp_size))
        [step] = ops.start_step([view])
        local = self._local(view)
        hidden = self.embedding(batch.token_ids)
        assert self.embedding_norm is not None, "an encoder without a norm of its embeddings"
        ops.norm(hidden, self.embedding_norm, out=hidden)
        for index, layer in enumerate(self.layers):
            normed = hidden if layer.attention_norm is None else ops.norm(hidden, layer.attention_norm)
            projected = layer.qkv(normed)
            if local is not None and geometry.reaches[index]:
                mixed = local.attend(index, projected)
            else:
                query = ops.rotate_and_cache(step, index, projected, None, None)
                mixed = attention.attend(plan, index, query, layer.attention)
            assert layer.mlp_norm is not None, "a layer without a norm of its feed-forward"
            normed = ops.add_norm(hidden, layer.output(mixed.flatten(1)), layer.mlp_norm)
            ops.add(hidden, layer.feed_forward(normed))
        return ops.norm(hidden, self.final_norm)

    def _local(self, view: CacheView) -> LocalAttention | None:
        """The attention that the step's local layers share; None if there are no local layers."""
        [reach] = {reach for reach in self.geometry.reaches if reach} or {0}
        if not reach:
            return None
        num_heads = self.geometry.heads_of_rank(self.tp_size)
        return LocalAttention(self.ops, self.attention, num_heads, self.geometry.scale, view, reach)
