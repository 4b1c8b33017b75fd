"""Attention of each token of an encoder to the tokens at most `reach` positions before or after it.

The kernels have two masks: a window that ends at a row's token, and the whole row. Together they compute a window
around a token exactly, when queries are shifted and texts are reversed. Query i of a text of n tokens is in one range:

    0 ........ n - reach    `left`    its window ends at i + reach: the row of these queries has n keys, and each query
                                      is `reach` positions after its own key
    the last `reach`        `right`   the same in the reversed text, whose keys and values are written a second time,
                                      to the next layer's slots in the cache, which are still free
    in both ranges          `whole`   all keys, because both ends of the text are within reach; only if n < 2 * reach

A query's range, and so its bits, depend only on its position and the length of its text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ...geometry.layer_options import AttentionOptions
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...layers.attention import AttentionBackend
from ...layers.norm import Norm
from ...layers.ops import Ops

Span = tuple[range, int]  # tokens of the step, in the order of the row's queries; keys of the row


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Queries that one call of a kernel serves."""

    plan: object
    tokens: Tensor  # [queries] i64, indices into the step's tokens
    options: AttentionOptions


class LocalAttention:
    """Attention of all local layers of one step."""

    def __init__(
        self, ops: Ops, attention: AttentionBackend, num_heads: int, scale: float, view: CacheView, reach: int
    ):
        """`view` is that of the step, whose rows are whole texts."""
        self._ops = ops
        self._attention = attention
        starts: list[int] = view.row_starts.tolist()
        texts = [range(start, end) for start, end in pairwise(starts)]
        backward = replace(view, cache=_one_layer_on(view), slots=view.slots[_indices(map(reversed_of, texts), view)])
        window, whole = AttentionOptions(scale, 2 * reach + 1), AttentionOptions(scale, is_bidirectional=True)
        chosen = [
            (view, [_left(text, reach) for text in texts], window),
            (backward, [_right(text, reach) for text in texts], window),
            (view, [_whole(text, reach) for text in texts], whole),
        ]
        self._steps = ops.start_step([view, backward])
        views = [_rows(of, spans) for of, spans, _ in chosen]
        plans = [plan for [plan] in (attention.plan([each], num_heads) for each in views)]
        self._parts = [
            Part(plan, _indices((tokens for tokens, _ in spans), view), options)
            for plan, (_, spans, options) in zip(plans, chosen, strict=True)
        ]

    def attend(
        self, layer: int, projected: Tensor, query_norm: Norm | None = None, key_norm: Norm | None = None
    ) -> Tensor:
        """[tokens, (heads + 2 kv_heads) * head_dim] -> [tokens, heads, head_dim]."""
        for step in reversed(self._steps):
            query = self._ops.rotate_and_cache(step, layer, projected, query_norm, key_norm)
        mixed = torch.empty_like(query)
        for part in self._parts:
            if len(part.tokens):
                found = self._attention.attend(part.plan, layer, query[part.tokens], part.options)
                mixed.index_copy_(0, part.tokens, found)
        return mixed


def reversed_of(text: range) -> range:
    return text[::-1]


def _left(text: range, reach: int) -> Span:
    return text[: max(0, len(text) - reach)], len(text)


def _right(text: range, reach: int) -> Span:
    count = min(reach, max(0, len(text) - reach))
    return text[::-1][:count], count + reach


def _whole(text: range, reach: int) -> Span:
    return text[max(0, len(text) - reach) : reach], len(text)


def _indices(tokens: Iterable[Sequence[int]], view: CacheView) -> Tensor:
    return torch.tensor([index for each in tokens for index in each], dtype=torch.int64, device=view.slots.device)


def _rows(view: CacheView, spans: Sequence[Span]) -> CacheView:
    """`view` with one row per span that has queries. They attend as if they were the last tokens of the span's keys."""
    kept = [row for row, (tokens, _) in enumerate(spans) if tokens]
    counts = [0, *(len(spans[row][0]) for row in kept)]
    return replace(
        view,
        block_tables=view.block_tables[kept],
        row_starts=torch.tensor(counts, dtype=torch.int32, device=view.slots.device).cumsum(0, dtype=torch.int32),
        kv_lens=torch.tensor([spans[row][1] for row in kept], dtype=torch.int32, device=view.slots.device),
        num_decode_rows=0,
    )


def _one_layer_on(view: CacheView) -> KVCache:
    """The cache in which each layer has the next layer's tensors, and the last layer has those of the first."""
    cache = view.cache
    keys, values, scales = ([*each[1:], *each[:1]] for each in (cache.keys, cache.values, cache.scales))
    return replace(cache, keys=keys, values=values, scales=scales)
