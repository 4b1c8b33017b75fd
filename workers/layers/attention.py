"""The interface between models and attention backends."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checkpoint.attention_options import AttentionOptions
from ..kv.cache_view import CacheView


class AttentionBackend(Protocol):
    """Attention over the paged cache.

    The bits of a token's result are a function of its query and its request's keys and values: they are the same in a
    decode step, a chunk of any size and a recomputation, for any other requests, block ids and block sizes.
    """

    head_multiple: int  # elements; heads in the cache are zero-padded to a multiple of this
    coded_cache: torch.dtype | None  # the 8-bit cache dtype that it supports with 16-bit models

    def plan(self, views: Sequence[CacheView], num_heads: int) -> Sequence[Any]:
        """The data that all layers of a KV group share in one step: one plan per view, opaque to the caller.

        `views` are of the same requests and differ in block tables and slots. Called once per step, before any layer
        writes. It may prepare the blocks that this step starts to fill, which still hold data of their previous use.
        """
        ...

    def attend(self, plan: Any, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        """Attention of `query` [tokens, heads, head_dim] over the cached tokens of its request, the token included.

        `plan` is that of the layer's group. Query head h reads KV head h // (heads / kv_heads). Blocks that are
        entirely before the window of their request's first token in the step are not read.
        """
        ...
