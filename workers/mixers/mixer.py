"""Token mixers: the part of a layer whose result for a token depends on the request's earlier tokens."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..kv.cache_view import CacheView


@dataclass(frozen=True, slots=True, eq=False)
class GroupStep:
    """The data that all layers of a KV group share in one step."""

    view: CacheView
    attention: Any  # the plan of AttentionBackend.plan
    ops: Any  # from Ops.start_step


class Mixer(Protocol):
    """The token mixer of one layer. It writes the tokens' keys and values, or states, to the cache.

    A token's bits are a function of its request's tokens up to it: they are the same in a decode step, a chunk of any
    size and a recomputation.
    """

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden], output projection included. `step` is that of the layer's group."""
        ...
