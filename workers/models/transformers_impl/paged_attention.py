"""The attention function that the library's modules call: our cache, our kernels, all rows of a step at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...batch.input_batch import InputBatch
from ...checkpoint.attention_options import AttentionOptions
from ...kv.cache_view import CacheView
from ...kv.kv_cache import KVCache
from ...layers.attention import AttentionBackend
from ...layers.ops import Ops

HOLDER = "paged_serve"  # the attribute of each attention module with what computes its attention
Attended = tuple[Tensor, None]  # [1, tokens, heads, head_dim], and no weights


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
) -> Attended:
    """What the library calls in each layer: `query` and the others are [1, heads, tokens, head_dim], rotated."""
    result: Attended = getattr(module, HOLDER)(module, query, key, value, attention_mask, options)
    return result


def hold(base: nn.Module, attention: Any) -> None:
    """Have all attention modules of `base` call `attention`; these are the ones that know their layer."""
    for module in base.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.__dict__[HOLDER] = attention  # not a part of the module


class PagedAttention(nn.Module):
    """The attention of all layers of one model. `start` begins a step; then each layer calls once."""

    def __init__(self, attention: AttentionBackend, ops: Ops, num_heads: int, options: Sequence[AttentionOptions]):
        super().__init__()
        self._attention = attention
        self._ops = ops
        self._num_heads = num_heads
        self._options = options
        self._of_layer: Sequence[int] = ()
        self._plans: Sequence[Any] = ()
        self._steps: Sequence[Any] = ()

    def start(self, batch: InputBatch, cache: KVCache) -> None:
        views = [CacheView.of(batch, cache, group) for group in range(len(cache.groups.windows))]
        self._plans = self._attention.plan(views, self._num_heads)
        self._steps = self._ops.start_step(views)
        self._of_layer = cache.groups.of_layer

    def forward(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Attended:
        layer: int = module.layer_idx
        group = self._of_layer[layer]
        projected = torch.cat([each[0].transpose(0, 1) for each in (query, key, value)], dim=1).flatten(1)
        stored = self._ops.rotate_and_cache(self._steps[group], layer, projected, None, None)  # by angles of 0
        return self._attention.attend(self._plans[group], layer, stored, self._options[layer]).unsqueeze(0), None
