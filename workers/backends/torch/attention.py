"""Attention in plain torch and float32, for a whole step at once. Kernels are tested against it within a tolerance, and
CUDA devices without a kernel use it.

Each tile of keys is reduced separately, and a strip's tiles are added in order. For another number of tiles or queries
the library may add in another order, so a token's bits are not guaranteed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionMask, AttentionOptions
from ...kv.cache_view import CacheView
from ...layers.activation import capped
from .attention_tiles import PAGE_KEYS, TILE_KEYS, TileBatch, tile_batches


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One step's queries and the tiles of keys that they visit."""

    view: CacheView
    tiles: dict[tuple[AttentionMask, int], list[TileBatch]]  # by query heads per KV head; filled when first needed


class TorchOracle:
    """The AttentionBackend of plain torch, on any device."""

    head_multiple = 1
    coded_cache: torch.dtype | None = None

    def plan(self, views: Sequence[CacheView], num_heads: int) -> list[StepPlan]:
        cache = views[0].cache
        if cache.groups.areas:  # a group's tables count rows of its own size
            for view in views:
                _clear_started([view], [cache.values[layer] for layer in cache.groups.layers_of(view.group)])
        else:
            _clear_started(views, cache.values)
        return [StepPlan(view, {}) for view in views]

    def attend(self, plan: StepPlan, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        cache, mask = plan.view.cache, options.mask
        kind = mask, query.shape[1] // cache.keys[layer].shape[1]
        if kind not in plan.tiles:
            plan.tiles[kind] = tile_batches(plan.view, kind[1], mask)
        result = torch.zeros_like(query)  # padding has no keys
        for tiles in plan.tiles[kind]:
            gains = None if options.pairs is None else _pairs(tiles, options.pairs, plan.view, kind[1])
            _attend_tiles(tiles, cache.keys[layer], cache.values[layer], query, options, result, gains)
        return result


def _pairs(tiles: TileBatch, pairs: Tensor, view: CacheView, group_size: int) -> Tensor:
    """What each score of the tiles gains, [tiles, kv_heads, num_queries, TILE_KEYS]."""
    tokens = tiles.tokens.repeat_interleave(group_size, 1)[tiles.strip_of_tile]  # [tiles, num_queries]
    keys = tiles.distances + view.positions[tokens][:, None, :, None]
    heads = _per_query(
        torch.arange(pairs.shape[1], device=pairs.device), pairs.shape[1] // group_size, tiles.strip_tokens
    )
    return pairs[tokens[:, None, :, None], heads[None, :, :, None], keys.clamp_max(pairs.shape[2] - 1)]


def _clear_started(views: Sequence[CacheView], tensors: Sequence[Tensor]) -> None:
    """Zero the values of blocks that this step starts to fill: a masked key adds 0 times its value, which must not be
    an infinity from the block's previous use."""
    slots, block_size = torch.cat([view.slots for view in views]), views[0].cache.block_size
    started = slots[slots % block_size == 0] // block_size
    if len(started):
        for values in dict.fromkeys(tensors):
            if len(values):  # else of a recurrent layer
                values[started] = 0


def _change_scores(scores: Tensor, tiles: TileBatch, options: AttentionOptions, num_heads: int) -> None:
    """Apply the cap, and add what depends on distances, to `scores` [tiles, kv_heads, queries, TILE_KEYS]."""
    kv_heads = scores.shape[1]
    if options.cap:
        capped(scores, options.cap)
    if options.slopes is not None:
        scores.add_(_per_query(options.slopes, kv_heads, tiles.strip_tokens).unsqueeze(-1) * tiles.distances)
    if options.bias is not None:
        heads = _per_query(torch.arange(num_heads, device=scores.device), kv_heads, tiles.strip_tokens)
        scores.add_(options.biases(heads.unsqueeze(-1), tiles.distances))


def _attend_tiles(
    tiles: TileBatch,
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    options: AttentionOptions,
    result: Tensor,
    gains: Tensor | None,
) -> None:
    """Compute the tokens of `tiles` and write them to `result` [tokens, heads, head_dim]; `gains`: see `_pairs`."""
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    queries = _strip_queries(tiles, query, kv_heads).mul_(options.scale)
    num_tiles, num_queries = len(tiles.strip_of_tile), tiles.num_queries
    shape = (num_tiles, kv_heads, num_queries)

    per_tile = queries[tiles.strip_of_tile].view(num_tiles * kv_heads, num_queries, head_dim)
    weights = torch.bmm(per_tile, _gather(keys, tiles.pages).transpose(1, 2)).view(*shape, TILE_KEYS)
    _change_scores(weights, tiles, options, query.shape[1])
    if gains is not None:
        weights.add_(gains)
    weights.masked_fill_(tiles.hidden, -math.inf)
    largest = _over_tiles(torch.maximum, weights.amax(-1), tiles, -math.inf)
    sinks = None if options.sinks is None else _per_query(options.sinks, kv_heads, tiles.strip_tokens)
    if sinks is not None:
        torch.maximum(largest, sinks, out=largest)
    weights.sub_(largest[tiles.strip_of_tile].unsqueeze(-1)).exp_()
    total = _over_tiles(torch.add, weights.sum(-1), tiles, 0.0)
    if sinks is not None:
        total.add_((sinks - largest).exp_())
    weighted = torch.bmm(weights.view(num_tiles * kv_heads, num_queries, TILE_KEYS), _gather(values, tiles.pages))
    mixed = _over_tiles(torch.add, weighted.view(*shape, head_dim), tiles, 0.0).div_(total.unsqueeze(-1))

    group_size = query.shape[1] // kv_heads
    by_strip = mixed.view(-1, kv_heads, tiles.strip_tokens, group_size, head_dim)
    by_token = by_strip.transpose(1, 2).reshape(-1, *query.shape[1:])  # [strips * strip_tokens, heads, head_dim]
    result[tiles.tokens.flatten()] = by_token.to(result.dtype)  # padding repeats a strip's last token


def _per_query(of_heads: Tensor, kv_heads: int, strip_tokens: int) -> Tensor:
    """One number per head, repeated for its queries: [heads] -> [kv_heads, num_queries], in the order of a strip."""
    return of_heads.view(kv_heads, -1).repeat(1, strip_tokens)


def _strip_queries(tiles: TileBatch, query: Tensor, kv_heads: int) -> Tensor:
    """The queries by strip, [strips, kv_heads, num_queries, head_dim] float32."""
    _, heads, head_dim = query.shape
    strips, group_size = tiles.tokens.shape[0], heads // kv_heads
    by_strip = query[tiles.tokens].view(strips, tiles.strip_tokens, kv_heads, group_size, head_dim)
    return by_strip.transpose(1, 2).float().reshape(strips, kv_heads, tiles.num_queries, head_dim).contiguous()


def _gather(cache: Tensor, pages: Tensor) -> Tensor:
    """Keys or values of all tiles, [tiles * kv_heads, TILE_KEYS, head_dim] float32."""
    num_blocks, kv_heads, block_size, head_dim = cache.shape
    if block_size == PAGE_KEYS:
        gathered = cache.index_select(0, pages)
    else:
        per_block = block_size // PAGE_KEYS
        by_page = cache.view(num_blocks, kv_heads, per_block, PAGE_KEYS, head_dim)
        gathered = by_page[torch.div(pages, per_block, rounding_mode="floor"), :, pages % per_block]
    per_tile = TILE_KEYS // PAGE_KEYS
    num_tiles = len(pages) // per_tile
    joined = torch.empty(num_tiles, kv_heads, per_tile, PAGE_KEYS, head_dim, device=cache.device)
    joined.copy_(gathered.view(num_tiles, per_tile, kv_heads, PAGE_KEYS, head_dim).transpose(1, 2))
    return joined.view(num_tiles * kv_heads, TILE_KEYS, head_dim)


def _over_tiles(combine: Callable[..., Any], per_tile: Tensor, tiles: TileBatch, start: float) -> Tensor:
    """Reduce [tiles, ...] to [strips, ...], combining each strip's tiles in order."""
    combined = per_tile.new_full((tiles.tiles_at[0], *per_tile.shape[1:]), start)
    first = 0
    for count in tiles.tiles_at:
        combine(combined[:count], per_tile[first : first + count], out=combined[:count])
        first += count
    return combined
