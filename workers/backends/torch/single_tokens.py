"""Attention in plain torch and float32, one token and one tile of keys at a time, on the CPU.

The shape of every product depends only on the model, so neither other tokens nor the number of keys can make the
library choose another kernel. A token's tiles are added in order, from the first that it attends to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionMask, AttentionOptions
from ...kv.cache_view import CacheView
from ...layers.activation import capped

TILE_KEYS = 64  # tile t holds positions [64 t, 64 t + 64) for any block size


@dataclass(frozen=True, slots=True, eq=False)
class SingleTokenPlan:
    """The tokens and keys of each request in one step."""

    view: CacheView
    rows: list[tuple[int, int, int]]  # first token, end of tokens, kv_len
    slots: dict[AttentionMask, list[Tensor]]  # one per row (see _slots); filled when a layer first needs them


@dataclass(frozen=True, slots=True)
class Seen:
    """A token's position, and the first and last positions that it attends to."""

    position: int
    seen_from: int
    seen_to: int


class SingleTokenAttention:
    """The AttentionBackend of a CPU without our kernels."""

    head_multiple = 1
    coded_cache: torch.dtype | None = None

    def plan(self, views: Sequence[CacheView], num_heads: int) -> list[SingleTokenPlan]:
        starts, kv_lens = views[0].row_starts.tolist(), views[0].kv_lens.tolist()
        rows = list(zip(starts, starts[1:], kv_lens, strict=False))
        return [SingleTokenPlan(view, rows, {}) for view in views]

    def attend(self, plan: SingleTokenPlan, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        keys, values = plan.view.cache.keys[layer], plan.view.cache.values[layer]
        kv_heads, mask = keys.shape[1], options.mask
        queries = (query.float() * options.scale).view(len(query), kv_heads, -1, query.shape[2])
        result = torch.zeros_like(query)  # padding has no keys
        by_group = result.view(queries.shape)
        if mask not in plan.slots:
            plan.slots[mask] = _slots(plan.view, plan.rows, mask)
        for (start, end, kv_len), slots in zip(plan.rows, plan.slots[mask], strict=True):
            if kv_len == 0:
                continue
            row_keys, row_values = _tiles(keys, slots), _tiles(values, slots)
            for token in range(start, end):
                position = kv_len - (end - token)
                seen_to = kv_len - 1 if options.is_bidirectional else position
                seen = Seen(position, mask.first_seen(position), seen_to)
                mixed = _attend_token(queries[token].clone(), row_keys, row_values, seen, options.of_token(token))
                by_group[token] = mixed.to(query.dtype)
        return result


def _slots(view: CacheView, rows: list[tuple[int, int, int]], mask: AttentionMask) -> list[Tensor]:
    """The slots of each row's positions, [tiles * TILE_KEYS] i64. Positions before the first that a token attends to
    get its slot, and positions after the last get the last slot: their own may be in another row's blocks."""
    found, block_size = [], view.cache.block_size
    for row, (start, end, kv_len) in enumerate(rows):
        first = mask.first_seen(max(0, kv_len - (end - start)))
        positions = torch.arange(-(-kv_len // TILE_KEYS) * TILE_KEYS).clamp_(first, max(kv_len - 1, 0))
        blocks = view.block_tables[row, positions // block_size].long()
        found.append(blocks * block_size + positions % block_size)
    return found


def _tiles(cache: Tensor, slots: Tensor) -> Tensor:
    """Keys or values of a row, [tiles, kv_heads, TILE_KEYS, head_dim] float32."""
    _, kv_heads, block_size, head_dim = cache.shape
    by_slot = cache[slots // block_size, :, slots % block_size]  # [positions, kv_heads, head_dim]
    return by_slot.float().view(-1, TILE_KEYS, kv_heads, head_dim).transpose(1, 2).contiguous()


def _attend_token(query: Tensor, keys: Tensor, values: Tensor, token: Seen, options: AttentionOptions) -> Tensor:
    """Attention of one token's `query` [kv_heads, group, head_dim] over the token's keys, in the same shape."""
    seen_from, seen_to = token.seen_from, token.seen_to
    tiles = range(seen_from // TILE_KEYS, seen_to // TILE_KEYS + 1)
    hidden = [_hidden(tile, seen_from, seen_to) for tile in tiles]
    scores = [torch.bmm(query, keys[tile].transpose(1, 2)) for tile in tiles]
    for tile, score in zip(tiles, scores, strict=True):
        if options.cap:
            capped(score, options.cap)
        if options.slopes is not None or options.bias is not None or options.pairs is not None:
            _add_biases(score, tile, token.position, options)
    for score, mask in zip(scores, hidden, strict=True):
        if mask is not None:
            score.masked_fill_(mask, -math.inf)
    largest = scores[0].amax(-1, keepdim=True)
    for score in scores[1:]:
        torch.maximum(largest, score.amax(-1, keepdim=True), out=largest)
    sinks = None if options.sinks is None else options.sinks.view(largest.shape)
    if sinks is not None:
        torch.maximum(largest, sinks, out=largest)
    total, mixed = torch.zeros_like(largest), torch.zeros_like(query)
    for tile, score, mask in zip(tiles, scores, hidden, strict=True):
        weights = score.sub_(largest).exp_()
        # A masked key has weight 0, but 0 times an infinity would be NaN.
        seen = values[tile] if mask is None else values[tile].masked_fill(mask.unsqueeze(1), 0.0)
        total += weights.sum(-1, keepdim=True)
        mixed += torch.bmm(weights, seen)
    if sinks is not None:
        total += (sinks - largest).exp_()
    return mixed.div_(total)


def _add_biases(score: Tensor, tile: int, position: int, options: AttentionOptions) -> None:
    """Add to a tile's `score` [kv_heads, group, TILE_KEYS] what depends on a key's distance, or on the pair."""
    distances = torch.arange(tile * TILE_KEYS, (tile + 1) * TILE_KEYS) - position
    if options.slopes is not None:
        score.add_(options.slopes.view(*score.shape[:2], 1) * distances.float())
    if options.bias is not None:
        heads = torch.arange(score.shape[0] * score.shape[1]).view(*score.shape[:2], 1)
        score.add_(options.biases(heads, distances))
    if options.pairs is not None:
        here = options.pairs[0, :, tile * TILE_KEYS : (tile + 1) * TILE_KEYS].reshape(*score.shape[:2], -1)
        score[..., : here.shape[2]].add_(here)


def _hidden(tile: int, seen_from: int, seen_to: int) -> Tensor | None:
    """The mask [TILE_KEYS] bool of the tile's keys that are not visible; None if all are."""
    first, last = tile * TILE_KEYS, tile * TILE_KEYS + TILE_KEYS - 1
    if seen_from <= first and last <= seen_to:
        return None
    positions = torch.arange(first, last + 1)
    after = positions > seen_to
    return after if seen_from <= first else after | (positions < seen_from)
