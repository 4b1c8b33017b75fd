"""The interface of attention backends: all that a model knows of them."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checkpoint.attention_options import AttentionOptions
from ..kv.cache_view import CacheView


class AttentionBackend(Protocol):
    """Attention over the paged cache.

    The bits of a token's result are a function of its query and of its request's keys and values: the same for a
    decode step, a chunk of any size and a recompute, whatever the neighbours, the blocks' ids or their size.
    """

    head_multiple: int  # elements; a head in the cache is padded with zeros to a multiple of this
    coded_cache: torch.dtype | None  # the 8-bit cache dtype that it reads, for models of 16 bits

    def plan(self, views: Sequence[CacheView], num_heads: int) -> Sequence[Any]:
        """What all layers of a KV group share in one step: one plan per view, opaque to the caller.

        `views` are of the same requests and differ in block tables and slots. Called once per step, before any layer
        writes. May prepare the blocks that this step starts to fill: they hold what their last owner left.
        """
        ...

    def attend(self, plan: Any, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        """Attention of `query` [tokens, heads, head_dim] over the cached tokens of its request, the token included.

        `plan` is that of the layer's group. Query head h reads KV head h // (heads / kv_heads). Blocks that lie wholly
        before the window of their request's first token in the step are not read.
        """
        ...
