"""The decoder that every dense family is an instance of."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.backend import AttentionBackend
from ..input_batch import InputBatch
from ..kv_cache import KVCache
from ..layers.activation import silu_mul
from ..layers.embedding import OutputHead, VocabularyEmbedding
from ..layers.linear import ColumnParallelLinear, RowParallelLinear
from ..layers.norm import RMSNorm
from ..layers.rotary import Rotary, rotate
from .geometry import Geometry


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer's weights, as this rank holds them."""

    attention_norm: RMSNorm
    qkv: ColumnParallelLinear  # queries, then keys, then values
    query_norm: RMSNorm | None  # per head
    key_norm: RMSNorm | None
    output: RowParallelLinear
    mlp_norm: RMSNorm
    gate_up: ColumnParallelLinear  # gate, then up
    down: RowParallelLinear
    window: int  # positions a token sees; 0: all


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model. `forward` fills the cache and gives hidden states, `logits` what they say of the next token."""

    geometry: Geometry
    tp_size: int
    device: str
    embedding: VocabularyEmbedding
    layers: list[DecoderLayer]
    final_norm: RMSNorm
    output_head: OutputHead
    rotary: Rotary
    attention: AttentionBackend
    weights_bytes: int  # on this rank

    @property
    def dtype(self) -> torch.dtype:
        return self.geometry.dtype

    @torch.inference_mode()
    def forward(self, batch: InputBatch, cache: KVCache) -> Tensor:
        """Hidden states after the last layer, normalised: [tokens, hidden]. Writes the tokens' K and V to `cache`."""
        num_heads = self.geometry.heads_of_rank(self.tp_size)
        plan = self.attention.plan(batch, cache, num_heads)
        cosine, sine = self.rotary.angles(batch.positions)
        hidden = self.embedding(batch.token_ids)
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(layer, hidden, cosine, sine)
            self.attention.write_kv(plan, cache, index, key, value)
            scale = 1.0 / math.sqrt(self.geometry.head_dim)
            mixed = self.attention.attend(plan, cache, index, query, scale, layer.window)
            hidden = hidden + layer.output(mixed.flatten(1))
            hidden = hidden + layer.down(silu_mul(layer.gate_up(layer.mlp_norm(hidden))))
        return self.final_norm(hidden)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab] float32, on every rank."""
        return self.output_head(hidden)

    def _project(
        self, layer: DecoderLayer, hidden: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query [tokens, heads, head_dim] and key, and value [tokens, kv_heads, head_dim]."""
        heads, kv_heads = self.geometry.heads_of_rank(self.tp_size), self.geometry.kv_heads_of_rank(self.tp_size)
        projected = layer.qkv(layer.attention_norm(hidden)).view(len(hidden), -1, self.geometry.head_dim)
        if layer.query_norm is None or layer.key_norm is None:
            turned = rotate(projected[:, : heads + kv_heads], cosine, sine)
            return turned[:, :heads], turned[:, heads:], projected[:, heads + kv_heads :]
        query, key, value = torch.split(projected, [heads, kv_heads, kv_heads], dim=1)
        return rotate(layer.query_norm(query), cosine, sine), rotate(layer.key_norm(key), cosine, sine), value
