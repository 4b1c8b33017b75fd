"""Encoders with pre-norms, whose layers may attend within a window around each token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...mixers.attention import Attention
from .embedded import EncoderModel
from .local_attention import LocalAttention


@dataclass(frozen=True, slots=True, eq=False)
class LocalEncoder(EncoderModel):
    """An encoder whose layers normalise before attention and before the feed-forward (pre-norm)."""

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [tokens, hidden]. The batch has whole prompts."""
        geometry, ops = self.geometry, self.ops
        [step] = self._steps(batch, cache)
        local = self._local(step.view)
        hidden = self.embedded(batch)
        for index, layer in enumerate(self.layers):
            normed = hidden if layer.attention_norm is None else ops.norm(hidden, layer.attention_norm)
            mixer = layer.mixer
            assert isinstance(mixer, Attention), "a layer without attention"
            if local is not None and geometry.reaches[index]:
                norms = mixer.query_norm, mixer.key_norm
                mixed = mixer.output(local.attend(index, mixer.qkv(normed), *norms).flatten(1))
            else:
                mixed = mixer(step, normed)
            if layer.attention_out_norm is not None:
                mixed = ops.norm(mixed, layer.attention_out_norm)
            assert layer.mlp_norm is not None, "a layer without a norm of its feed-forward"
            normed = ops.add_norm(hidden, mixed, layer.mlp_norm)
            assert layer.feed_forward is not None
            changed = layer.feed_forward(normed)
            if layer.mlp_out_norm is not None:
                changed = ops.norm(changed, layer.mlp_out_norm)
            ops.add(hidden, changed)
        return ops.norm(hidden, self.final_norm)

    def _local(self, view: CacheView) -> LocalAttention | None:
        """The attention that the step's local layers share; None if there are no local layers."""
        [reach] = {reach for reach in self.geometry.reaches if reach} or {0}
        if not reach:
            return None
        num_heads = self.geometry.heads_of_rank(self.tp_size)
        return LocalAttention(self.ops, self.attention, num_heads, self.geometry.scale, view, reach)
