"""The head of EAGLE-3: one decoder layer that reads a target's hidden states between layers, and drafts from them.

The method is that of https://arxiv.org/abs/2503.01840.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...geometry.geometry import Geometry
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...layers.attention import AttentionBackend
from ...layers.embedding import OutputHead, VocabularyEmbedding
from ...layers.feed_forward import FeedForward
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...layers.ops import Ops
from ...mixers.attention import Attention
from ...mixers.mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class Eagle3Head:
    """A loaded head, whole on its rank."""

    geometry: Geometry  # of one layer; its vocabulary is that of drafts
    tapped: tuple[int, ...]  # three layers
    embedding: VocabularyEmbedding  # of the target's vocabulary
    joining: Linear  # from three hidden states of the target to one
    embedding_norm: Norm
    hidden_norm: Norm
    attention: Attention  # its input is the normalised embedding, then the normalised hidden state
    mlp_norm: Norm
    feed_forward: FeedForward
    final_norm: Norm
    output_head: OutputHead
    target_ids: Tensor  # [draft vocabulary] i64: the target's token of each draft token
    normalises_residual: bool  # the layer's residual stream begins with the normalised hidden state
    ops: Ops
    attention_backend: AttentionBackend
    weights_bytes: int

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        return KVCache.allocate(self.geometry, num_blocks, block_size)

    @torch.inference_mode()
    def joined(self, tapped: Tensor) -> Tensor:
        return self.joining(tapped).clone()

    @torch.inference_mode()
    def forward(self, batch: InputBatch, hidden: Tensor, cache: KVCache) -> Tensor:
        """As in LoadedHead: the hidden states after the layer, without a norm."""
        ops, view = self.ops, CacheView.of(batch, cache)
        [plan] = self.attention_backend.plan([view], self.geometry.num_heads)
        step = GroupStep(view, plan, ops.start_step([view])[0])
        normed = ops.norm(hidden, self.hidden_norm).clone()
        embedded = ops.norm(self.embedding(batch.token_ids), self.embedding_norm)
        residual = normed.clone() if self.normalises_residual else hidden.clone()
        mixed = self.attention(step, torch.cat((embedded, normed), dim=1))
        ops.add(residual, self.feed_forward(ops.add_norm(residual, mixed, self.mlp_norm)))
        return residual

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return self.output_head(self.ops.norm(hidden, self.final_norm))

    @torch.inference_mode()
    def best(self, hidden: Tensor) -> Tensor:
        return self.target_ids[self.logits(hidden).argmax(dim=1)]
