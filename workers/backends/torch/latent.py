"""Latent attention in plain torch: the reference for the kernels, and the fallback without them."""

import torch
from torch import Tensor

from ...checkpoint.stacked_experts import of_expert
from ...checkpoint.weight_forms import Weight
from ...layers.attention import AttentionBackend, LatentLayer
from ...layers.linear import Product
from ...layers.rotary import rotate
from .ops import TorchStep


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
        step.cache.keys[layer].transpose(1, 2)[step.blocks, step.offsets] = vectors[step.cached]

    def attend(self, plan: object, step: TorchStep, query: Tensor) -> Tensor:
        sizes, layer = self._layer.sizes, self._layer.layer
        by_head = query.reshape(len(query), self._layer.num_heads, sizes.query_dim)
        plain, turned = torch.split(by_head, [sizes.nope_dim, sizes.rope_dim], dim=2)
        turned = rotate(turned, step.cosines[layer], step.sines[layer])
        in_latent_space = torch.cat([self._products(plain, self._keys), turned], dim=2)
        mixed = self._attention.attend(plan, layer, in_latent_space, self._layer.options)
        return self._products(mixed[:, :, : sizes.kv_rank], self._values).flatten(1)

    def _products(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """[tokens, heads, in] times the weight [out, in] of each head: [tokens, heads, out]."""
        return torch.stack([self._product(x[:, head], weight, None) for head, weight in enumerate(weights)], dim=1)


def _of_heads(weight: Weight, num_heads: int, outputs: int) -> list[Tensor]:
    assert isinstance(weight, Tensor), "not accepted"
    each = [of_expert(weight, head, outputs) for head in range(num_heads)]
    return [part for part in each if isinstance(part, Tensor)]
