"""Disentangled attention (He et al., DeBERTa), as a mixer.

A score is the product of a query and a key, plus that of the query and a key of their distance, plus that of the key
and a query of this distance. Keys and queries of distances are the same for all texts. The last two parts are computed
for each token and each bucket of distances, and then chosen for each pair of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from ...geometry.layer_options import Disentangled
from ...kv.budget import KEYS_MULTIPLE
from ...layers.linear import Linear
from ...mixers.attention import Attention
from ...mixers.mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class DisentangledAttention:
    """Attention within whole texts, each in one chunk."""

    attention: Attention
    distances: Disentangled
    distance_keys: Sequence[Linear]  # of each head: from a query to its products with the keys of all buckets
    distance_queries: Sequence[Linear]  # of each head: from a key to its products with the queries of all buckets

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        own = self.attention
        projected = own.qkv(normed)
        size = projected.shape[1] // 3
        keys = projected[:, size : 2 * size].clone()
        query = own.ops.rotate_and_cache(step.ops, own.layer, projected, None, None)
        of_queries = _products(self.distance_keys, query)
        of_keys = _products(self.distance_queries, keys.view(len(keys), len(self.distance_queries), -1))
        pairs = self._pairs(step, of_queries, of_keys).mul_(own.options.scale)
        mixed = own.backend.attend(step.attention, own.layer, query, replace(own.options, pairs=pairs))
        return own.output(mixed.flatten(1))

    def _pairs(self, step: GroupStep, of_queries: Tensor, of_keys: Tensor) -> Tensor:
        """The sums of both parts for each pair of tokens of a text, [tokens, heads, keys] float32."""
        tokens, heads, _ = of_queries.shape
        longest = -(-step.view.longest // KEYS_MULTIPLE) * KEYS_MULTIPLE
        pairs = torch.zeros(tokens, heads, longest, device=of_queries.device)
        buckets: dict[int, Tensor] = {}
        for start, end in pairwise(step.view.row_starts.tolist()):
            if (length := end - start) not in buckets:
                buckets[length] = self._buckets(length, of_queries.device)
            chosen = buckets[length]
            here = pairs[start:end, :, :length]
            here.copy_(_chosen(of_queries[start:end], chosen))
            here.add_(_chosen(of_keys[start:end], chosen.T).transpose(0, 2))
        return pairs

    def _buckets(self, length: int, device: torch.device) -> Tensor:
        """The bucket of each query and key of a text, [length, length] i64."""
        of_distance = torch.tensor(_buckets_of_distances(self.distances, length), device=device)
        places = torch.arange(length, device=device)
        return of_distance[places.unsqueeze(1) - places + length - 1]


@lru_cache(64)
def _buckets_of_distances(distances: Disentangled, length: int) -> list[int]:
    """By distance, from 1 - length to length - 1; the same in all layers and steps."""
    return [distances.bucket(distance) for distance in range(1 - length, length)]


def _products(of_heads: Sequence[Linear], x: Tensor) -> Tensor:
    """[tokens, heads, head_dim] -> [tokens, heads, buckets] float32."""
    found = [product(x[:, head].contiguous()).float().clone() for head, product in enumerate(of_heads)]
    return torch.stack(found, dim=1)


def _chosen(products: Tensor, buckets: Tensor) -> Tensor:
    """Of `products` [tokens, heads, buckets] those of each token's `buckets` [tokens, n]: [tokens, heads, n]."""
    return products.gather(2, buckets.unsqueeze(1).expand(-1, products.shape[1], -1))
