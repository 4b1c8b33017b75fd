"""The decoder that every dense family is an instance of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch.input_batch import InputBatch
from ..checkpoint.attention_options import AttentionOptions
from ..checkpoint.geometry import Geometry
from ..kv.cache_view import CacheView
from ..kv.kv_cache import KVCache
from ..layers.attention import AttentionBackend
from ..layers.backend import Backend
from ..layers.embedding import OutputHead, Table, VocabularyEmbedding
from ..layers.linear import Linear
from ..layers.norm import Norm, RMSNorm
from ..layers.ops import Ops


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer's weights, as this rank holds them."""

    attention_norm: Norm
    qkv: Linear  # queries, then keys, then values
    query_norm: RMSNorm | None  # per head
    key_norm: RMSNorm | None
    output: Linear
    attention_out_norm: Norm | None  # of what attention adds
    mlp_norm: Norm
    gate_up: Linear  # gate, then up; up alone where there is no gate
    down: Linear
    mlp_out_norm: Norm | None
    attention: AttentionOptions


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model. `forward` fills the cache and returns hidden states, `logits` the scores of the next token."""

    geometry: Geometry
    tp_size: int
    backend: Backend
    embedding: VocabularyEmbedding
    embedding_norm: Norm | None
    positions: Table | None  # learned; None: heads are rotated
    layers: list[DecoderLayer]
    final_norm: Norm
    output_head: OutputHead
    ops: Ops
    attention: AttentionBackend
    weights_bytes: int  # on this rank
    quantization: dict[str, str]  # facts for people; empty when nothing is quantized

    @property
    def device(self) -> str:
        return self.backend.device

    @property
    def dtype(self) -> torch.dtype:
        return self.geometry.dtype

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [tokens, hidden]. Writes the tokens' K and V to `cache`."""
        geometry, ops, attention = self.geometry, self.ops, self.attention
        residual = geometry.multipliers.residual
        view = CacheView.of(batch, cache)
        plan = attention.plan(view, geometry.heads_of_rank(self.tp_size))
        step = ops.start_step(view)
        norms = [*(layer.attention_norm for layer in self.layers), self.final_norm]
        hidden = self.embedding(batch.token_ids)
        if self.embedding_norm is not None:
            ops.norm(hidden, self.embedding_norm, out=hidden)
        if self.positions is None:
            normed = ops.norm(hidden, norms[0])
        else:
            normed = ops.add_norm(hidden, self.positions.rows(batch.positions), norms[0])
        for index, layer in enumerate(self.layers):
            query = ops.rotate_and_cache(step, index, layer.qkv(normed), layer.query_norm, layer.key_norm)
            mixed = layer.output(attention.attend(plan, index, query, layer.attention).flatten(1))
            if layer.attention_out_norm is not None:
                mixed = ops.norm(mixed, layer.attention_out_norm)
            normed = ops.add_norm(hidden, mixed, layer.mlp_norm, residual)
            activated = ops.activate(layer.gate_up(normed), geometry.activation)
            changed = layer.down(activated)
            if layer.mlp_out_norm is not None:
                changed = ops.norm(changed, layer.mlp_out_norm)
            normed = ops.add_norm(hidden, changed, norms[index + 1], residual)
        return normed

    @torch.inference_mode()
    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[n, hidden] -> [n, vocab] float32, on every rank; in `out` if it is given, else valid until the next call."""
        logits = self.output_head(hidden, out)
        return self.ops.cap(logits, self.geometry.logits_cap) if self.geometry.logits_cap else logits
