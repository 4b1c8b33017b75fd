"""Latent attention in plain torch: the reference for the kernels, and the fallback without them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...checkpoint.stacked_experts import of_expert
from ...checkpoint.weight_forms import Weight
from ...geometry.layer_options import AttentionOptions, Indexer, Latent
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...layers.attention import AttentionBackend, LatentLayer
from ...layers.linear import Product
from ...layers.rotary import rotate
from .ops import TorchStep

BLOCK_KEYS = 64  # of the cache that holds a token's chosen rows


class TorchLatentHeads:
    """The LatentHeads of plain torch: attention with one KV head, whose values are a part of its keys."""

    def __init__(self, layer: LatentLayer, attention: AttentionBackend, product: Product):
        self._layer = layer
        self._attention = attention
        self._product = product
        self._keys = _of_heads(layer.keys, layer.num_heads, layer.sizes.kv_rank)
        self._values = _of_heads(layer.values, layer.num_heads, layer.sizes.value_dim)

    def write(self, step: TorchStep, latent: Tensor) -> None:
        sizes, layer = self._layer.sizes, self._layer.layer
        compressed, key = torch.split(latent, [sizes.kv_rank, sizes.rope_dim], dim=1)
        turned = rotate(key.unsqueeze(1), step.cosines[layer], step.sines[layer])
        vectors = torch.cat([self._layer.norm(compressed).unsqueeze(1), turned], dim=2)
        rows = step.cache.keys[layer].transpose(1, 2)
        if sizes.indexer is None:
            rows[step.blocks, step.offsets] = vectors[step.cached]
        else:
            rows[step.blocks, step.offsets, :, : sizes.cached_dim] = vectors[step.cached]

    def attend(self, plan: object, step: TorchStep, query: Tensor) -> Tensor:
        sizes, layer = self._layer.sizes, self._layer.layer
        by_head = query.reshape(len(query), self._layer.num_heads, sizes.query_dim)
        if (scales := step.query_scales[layer]) is not None:
            by_head = (by_head.float() * scales).to(query.dtype)
        plain, turned = torch.split(by_head, [sizes.nope_dim, sizes.rope_dim], dim=2)
        turned = rotate(turned, step.cosines[layer], step.sines[layer])
        in_latent_space = torch.cat([self._products(plain, self._keys), turned], dim=2)
        if (selector := self._layer.selector) is None:
            mixed = self._attention.attend(plan, layer, in_latent_space, self._layer.options)
        else:
            assert isinstance(selector, TorchKeySelector)
            mixed = selector.attend(step, layer, in_latent_space, self._layer.options)
        return self._products(mixed[:, :, : sizes.kv_rank], self._values).flatten(1)

    def _products(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """[tokens, heads, in] times the weight [out, in] of each head: [tokens, heads, out]."""
        return torch.stack([self._product(x[:, head], weight, None) for head, weight in enumerate(weights)], dim=1)


def _of_heads(weight: Weight, num_heads: int, outputs: int) -> list[Tensor]:
    assert isinstance(weight, Tensor), "not accepted"
    each = [of_expert(weight, head, outputs) for head in range(num_heads)]
    return [part for part in each if isinstance(part, Tensor)]


class TorchKeySelector:
    """The KeySelector of plain torch, one token at a time.

    The shape of a token's product with its keys depends on its position alone, so no other token changes its bits.
    """

    def __init__(self, layer: int, sizes: Latent, indexer: Indexer, attention: AttentionBackend):
        self._layer = layer
        self._sizes = sizes
        self._indexer = indexer
        self._attention = attention
        self._slots: Sequence[Tensor] = ()  # of each token

    def write(self, step: TorchStep, keys: Tensor) -> None:
        turned = self._rotated(step, keys.unsqueeze(1))[step.cached]
        rows, start = step.cache.keys[self._layer].transpose(1, 2), self._sizes.index_start
        rows[step.blocks, step.offsets, :, start : start + self._indexer.head_dim] = turned

    def select(self, view: CacheView, step: TorchStep, query: Tensor, weights: Tensor) -> None:
        indexer, starts = self._indexer, view.row_starts.tolist()
        queries = self._rotated(step, query.view(len(query), indexer.num_heads, -1)).float()
        factors = weights * indexer.num_heads**-0.5
        slots = [view.slots[:0]] * len(query)  # padding has no keys
        for row, kv_len in enumerate(view.kv_lens.tolist()):
            every = _slots(view, row, kv_len)
            for token in range(starts[row], starts[row + 1]):
                seen = every[: kv_len - (starts[row + 1] - 1 - token)]
                slots[token] = seen[self._chosen(queries[token], factors[token], _rows(view.cache, self._layer)[seen])]
        self._slots = slots

    def attend(self, step: TorchStep, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        """Attention of each token over its chosen rows of `layer`, which are copied to a cache of their own."""
        result = torch.zeros_like(query)  # padding has no keys
        rows = _rows(step.cache, layer)[:, : self._sizes.cached_dim]
        for token, slots in enumerate(self._slots):
            if len(slots):
                view = _view_of(rows[slots], layer)
                [plan] = self._attention.plan([view], query.shape[1])
                only = slice(token, token + 1)
                result[only] = self._attention.attend(plan, layer, query[only].contiguous(), options)
        return result

    def _rotated(self, step: TorchStep, x: Tensor) -> Tensor:
        """`x` [tokens, heads, head_dim] with its first elements rotated."""
        turned, plain = torch.split(x, [self._sizes.rope_dim, x.shape[2] - self._sizes.rope_dim], dim=2)
        return torch.cat([rotate(turned, step.cosines[self._layer], step.sines[self._layer]), plain], dim=2)

    def _chosen(self, query: Tensor, factors: Tensor, rows: Tensor) -> Tensor:
        """The chosen positions of one token, in order."""
        start, indexer = self._sizes.index_start, self._indexer
        if len(rows) <= indexer.top_k:
            return torch.arange(len(rows), device=rows.device)
        keys = rows[:, start : start + indexer.head_dim].float()
        products = (query @ keys.T * indexer.head_dim**-0.5).relu_()
        scores = (products * factors.unsqueeze(1)).sum(0)
        scores = scores.masked_fill_(scores.isnan(), -math.inf)
        best = scores.sort(descending=True, stable=True).indices[: indexer.top_k]
        return torch.sort(best).values


def _slots(view: CacheView, row: int, kv_len: int) -> Tensor:
    positions, block_size = torch.arange(kv_len, device=view.block_tables.device), view.cache.block_size
    blocks = view.block_tables[row, torch.div(positions, block_size, rounding_mode="floor")].long()
    return blocks * block_size + positions % block_size


def _rows(cache: KVCache, layer: int) -> Tensor:
    """[slots, row_dim]"""
    keys = cache.keys[layer]
    return keys.view(-1, keys.shape[3])


def _view_of(rows: Tensor, layer: int) -> CacheView:
    """One token that attends to `rows` [keys, cached_dim], its own the last."""
    count, device = len(rows), rows.device
    blocks = -(-count // BLOCK_KEYS)
    padded = rows.new_zeros(blocks * BLOCK_KEYS, rows.shape[1])
    padded[:count] = rows
    keys = [padded.view(blocks, 1, BLOCK_KEYS, -1)] * (layer + 1)
    none = torch.empty(0, dtype=torch.int64, device=device)
    tables, starts, lens = (torch.tensor(each, dtype=torch.int32, device=device) for each in ([0], [0, 1], [count]))
    tables = torch.arange(blocks, dtype=torch.int32, device=device).unsqueeze(0)
    return CacheView(KVCache(keys, keys, BLOCK_KEYS), tables, starts, lens, none, none, count, 1)
