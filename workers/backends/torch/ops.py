"""The Ops of plain torch on any device: the reference, and the fallback without kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...geometry.model_options import Activation
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...layers.activation import activated, capped
from ...layers.norm import Norm, RMSNorm
from ...layers.ops import HeadLayout
from ...layers.rotary import rotate


@dataclass(frozen=True, slots=True, eq=False)
class TorchStep:
    """The angles of a step's tokens, per layer, and the places of their keys and values in the cache."""

    cache: KVCache
    cosines: tuple[Tensor, ...]  # [tokens, 1, head_dim / 2] float32
    sines: tuple[Tensor, ...]
    query_scales: tuple[Tensor | None, ...]  # [tokens, 1, 1] float32
    cached: Tensor | slice  # the tokens whose keys and values are cached: all but padding
    blocks: Tensor  # [cached tokens] i64
    offsets: Tensor  # [cached tokens] i64, within the block


class TorchOps:
    def __init__(self, heads: HeadLayout):
        self._heads = heads

    def start_step(self, views: Sequence[CacheView]) -> list[TorchStep]:
        longest, positions = views[0].longest, views[0].positions
        turns = {
            rotary: rotary.table(longest)[positions].unsqueeze(1).chunk(2, dim=-1) for rotary in self._heads.rotaries
        }
        cosines, sines = zip(*(turns[rotary] for rotary in self._heads.rotaries), strict=True)
        scales = tuple(
            None if (scale := rotary.query_scales) is None else scale[positions].view(-1, 1, 1)
            for rotary in self._heads.rotaries
        )
        return [_step(view, cosines, sines, scales) for view in views]

    def memory(self, role: str, like: Tensor, size: int) -> Tensor:
        return like.new_empty(len(like), size)

    def norm(self, hidden: Tensor, norm: Norm, out: Tensor | None = None) -> Tensor:
        return norm(hidden) if out is None else out.copy_(norm(hidden))

    def add_norm(self, hidden: Tensor, delta: Tensor, norm: Norm, multiplier: float = 1.0) -> Tensor:
        self.add(hidden, delta, multiplier)
        return norm(hidden)

    def add(self, hidden: Tensor, delta: Tensor, multiplier: float = 1.0) -> None:
        if multiplier == 1.0:
            hidden.add_(delta)
        else:
            hidden.copy_(hidden.float() + delta.float() * multiplier)

    def cap(self, logits: Tensor, cap: float) -> Tensor:
        return capped(logits, cap)

    def clip(self, x: Tensor, limit: float) -> Tensor:
        return x.clamp_(-limit, limit)

    def scale(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        scaled = (x.float() * factors).to(x.dtype)
        return scaled if out is None else out.copy_(scaled)

    def rotate_and_cache(
        self, step: TorchStep, layer: int, projected: Tensor, query_norm: Norm | None, key_norm: Norm | None
    ) -> Tensor:
        heads, kv_heads = self._heads, step.cache.keys[layer].shape[1]
        parts = projected.view(len(projected), -1, heads.rotaries[layer].head_dim)
        query, key, value = torch.split(parts, [heads.queries_of(layer), kv_heads, kv_heads], dim=1)
        if heads.normalises_values and key_norm is not None:
            value = RMSNorm(torch.ones(value.shape[2], device=value.device), key_norm.eps)(value)
        if query_norm is not None and key_norm is not None:
            query, key = query_norm(query), key_norm(key)
        cache, cached = step.cache, step.cached
        turn = step.cosines[layer], step.sines[layer]
        cache.keys[layer].transpose(1, 2)[step.blocks, step.offsets] = rotate(key, *turn)[cached]
        cache.values[layer].transpose(1, 2)[step.blocks, step.offsets] = value[cached]
        rotated, scales = rotate(query, *turn), step.query_scales[layer]
        return rotated if scales is None else (rotated * scales).to(rotated.dtype)

    def rotate_queries(self, step: TorchStep, layer: int, projected: Tensor, query_norm: Norm | None) -> Tensor:
        query = projected.view(len(projected), self._heads.queries_of(layer), -1)
        query = query if query_norm is None else query_norm(query)
        return rotate(query, step.cosines[layer], step.sines[layer])

    def activate(self, x: Tensor, activation: Activation, up: Tensor | None = None) -> Tensor:
        return activated(x if up is None else torch.cat([x, up], dim=1), activation)


def _step(
    view: CacheView, cosines: tuple[Tensor, ...], sines: tuple[Tensor, ...], query_scales: tuple[Tensor | None, ...]
) -> TorchStep:
    block_size, is_kept = view.cache.block_size, view.slots >= 0
    cached = slice(None) if bool(is_kept.all()) else is_kept.nonzero()[:, 0]
    slots = view.slots[cached]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    return TorchStep(view.cache, cosines, sines, query_scales, cached, blocks, slots - blocks * block_size)
