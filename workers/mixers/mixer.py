"""Token mixers: the part of a layer whose result for a token depends on the request's earlier tokens."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ..kv.cache_view import CacheView


@dataclass(frozen=True, slots=True, eq=False)
class GroupStep:
    """The data that all layers of a group share in one step.

    Layers with keys, values and a state (Falcon-H1) share the step of a pair of groups: `attention` and `ops` are those
    of the group of keys and values, `view` is that of the group of states. Each part of such a layer finds what it
    would find in a layer of its own, so that attention and recurrences do not differ between models.
    """

    view: CacheView  # attention does not read it
    attention: Any = None  # the plan of AttentionBackend.plan; None: the group has states only
    ops: Any = None  # from Ops.start_step, likewise
    returned_tokens: Tensor | None = None  # in a model's last layer, as in InputBatch

    def returned(self, x: Tensor) -> Tensor:
        """The rows of `x` [tokens, n] on which what the layer returns depends, once earlier tokens are mixed in."""
        return x if self.returned_tokens is None else x[self.returned_tokens]


class Mixer(Protocol):
    """The token mixer of one layer. It writes the tokens' keys and values, or states, to the cache.

    A token's bits are a function of its request's tokens up to it: they are the same in a decode step, a chunk of any
    size and a recomputation.
    """

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        """[tokens, hidden] -> [returned tokens, hidden], output projection included.

        `step` is that of the layer's group, or pair of groups.
        """
        ...
