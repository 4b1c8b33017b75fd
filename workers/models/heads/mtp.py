"""The head of multi-token prediction (MTP): a checkpoint's own further layer, which its makers trained with the model.

The method is that of section 2.2 of https://arxiv.org/abs/2412.19437. Of a pair, the target's hidden state of token p
and the embedding of token p + 1 are normalised, side by side, and projected to one vector; a layer like the target's
own and a norm follow. Hidden states are those after the target's final norm, and after the head's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...geometry.geometry import Geometry
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...kv.kv_groups import KVGroups
from ...layers.attention import AttentionBackend
from ...layers.embedding import OutputHead, VocabularyEmbedding
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...layers.ops import Ops
from ...mixers.mixer import GroupStep
from ..decoder import DecoderLayer


@dataclass(frozen=True, slots=True, eq=False)
class MtpHead:
    """A loaded head, whole on its rank."""

    geometry: Geometry  # of one layer
    tapped: tuple[int, ...]
    index: int  # the layer's number in the checkpoint, by which it finds its keys and values
    embedding: VocabularyEmbedding
    embedding_norm: Norm
    hidden_norm: Norm
    joining: Linear  # from the normalised embedding, then the normalised hidden state
    layer: DecoderLayer
    final_norm: Norm
    output_head: OutputHead
    ops: Ops
    attention_backend: AttentionBackend
    weights_bytes: int

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """Layers before the head's have no memory in it."""
        groups = KVGroups((0,), (0,) * (self.index + 1), (-1,) * self.index + (0,), layers_per_group=1)
        return KVCache.allocate(self.geometry, num_blocks, block_size, groups=groups)

    def joined(self, tapped: Tensor) -> Tensor:
        return tapped

    @torch.inference_mode()
    def forward(self, batch: InputBatch, hidden: Tensor, cache: KVCache) -> Tensor:
        """As in LoadedHead."""
        ops, layer, view = self.ops, self.layer, CacheView.of(batch, cache)
        [plan] = self.attention_backend.plan([view], self.geometry.num_heads)
        step = GroupStep(view, plan, ops.start_step([view])[0])
        embedded = ops.norm(self.embedding(batch.token_ids), self.embedding_norm).clone()
        residual = self.joining(torch.cat((embedded, ops.norm(hidden, self.hidden_norm)), dim=1)).clone()
        assert layer.attention_norm is not None
        assert layer.mlp_norm is not None
        assert layer.feed_forward is not None
        mixed = layer.mixer(step, ops.norm(residual, layer.attention_norm))
        changed = layer.feed_forward(ops.add_norm(residual, mixed, layer.mlp_norm))
        return ops.add_norm(residual, changed, self.final_norm).clone()

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return self.output_head(hidden)

    @torch.inference_mode()
    def best(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).argmax(dim=1)
