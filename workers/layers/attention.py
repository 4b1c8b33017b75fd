"""What an attention backend does; the decoder knows no more than this."""

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

    head_multiple: int  # elements; zeros fill up a head in the cache to a multiple of it
    coded_cache: torch.dtype | None  # what a cache may hold instead of the model's dtype, if it is 16 bits wide

    def plan(self, views: Sequence[CacheView], num_heads: int) -> Sequence[Any]:
        """What all layers of a KV group share in one step, for each group's view: those of the same requests, which
        differ in block tables and slots. Built once per step, before any layer writes. Opaque to the caller.

        May prepare the blocks that this step starts to fill: they hold what their last owner left.
        """
        ...

    def attend(self, plan: Any, layer: int, query: Tensor, options: AttentionOptions) -> Tensor:
        """`query` [tokens, heads, head_dim] over what the cache holds of each token's request, itself included; `plan`
        is that of the layer's group.

        Query head h reads KV head h // (heads / kv_heads). No block is read that lies wholly behind
        the window of its request's first token in the step.
        """
        ...
