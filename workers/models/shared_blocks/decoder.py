"""Decoders of recurrent layers, between which blocks of attention and a feed-forward are used several times."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kv.kv_cache import KVCache
from ...layers.feed_forward import FeedForward
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...mixers.attention import Attention
from ...mixers.mixer import GroupStep
from ..decoder import Model


@dataclass(frozen=True, slots=True, eq=False)
class BlockUse:
    """A use of a shared block: its weights, which other uses have too, with keys, values and changes of its own.

    It reads the residual stream beside the token's embedding, and has no residuals.
    """

    attention_norm: Norm  # [2 * hidden]
    attention: Attention
    mlp_norm: Norm
    feed_forward: FeedForward
    leaving: Linear  # to what the next layer adds to its input


@dataclass(frozen=True, slots=True, eq=False)
class SharedBlockDecoder(Model):
    """A Model in which the result of a block enters the next layer's input, and not the residual stream."""

    uses: dict[int, BlockUse]  # by layer of the decoder; the other layers are recurrent
    ones: Tensor  # [hidden] float32

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [returned tokens, hidden]. Writes K, V and states."""
        ops, size = self.ops, self.geometry.hidden_size
        embedded = self.embedding(batch.token_ids)
        both = ops.memory("residual and embedding", embedded, 2 * size)
        hidden = ops.scale(embedded, self.ones, out=both[:, :size])
        ops.scale(embedded, self.ones, out=both[:, size:])
        entering: Tensor | None = None
        for index, (layer, step) in enumerate(zip(self.layers, self._steps_of_layers(batch, cache), strict=True)):
            if index in self.uses:
                entering = self._used(self.uses[index], step, both)
                continue
            assert layer.attention_norm is not None
            if entering is None:
                normed = ops.norm(hidden, layer.attention_norm)
            else:
                normed = ops.add_norm(ops.scale(hidden, self.ones), entering, layer.attention_norm)
            entering = None
            mixed, hidden = layer.mixer(step, normed), step.returned(hidden)
            ops.add(hidden, mixed)
        return ops.norm(hidden, self.final_norm)

    def _used(self, use: BlockUse, step: GroupStep, both: Tensor) -> Tensor:
        mixed = use.attention(step, self.ops.norm(both, use.attention_norm))
        return use.leaving(use.feed_forward(self.ops.norm(mixed, use.mlp_norm)))
