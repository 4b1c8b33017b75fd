"""BERT-style encoders: bidirectional attention and post-norms, with learned positions or rotated heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kv.kv_cache import KVCache
from .embedded import EncoderModel


@dataclass(frozen=True, slots=True, eq=False)
class Encoder(EncoderModel):
    """An encoder whose layers normalise after each residual addition (post-norm)."""

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, [tokens, hidden]. The batch has whole prompts, each in one chunk."""
        [step] = self._steps(batch, cache)
        normed = self.embedded(batch)
        hidden = torch.empty_like(normed)
        for layer in self.layers:
            mixed = layer.mixer(step, normed)
            hidden.copy_(normed)
            normed = self._sum(hidden, mixed, layer.attention_norm)
            assert layer.feed_forward is not None
            changed = layer.feed_forward(normed)
            hidden.copy_(normed)
            normed = self._sum(hidden, changed, layer.mlp_norm)
        return normed
