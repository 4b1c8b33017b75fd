"""A feed-forward in the place of a mixer, in models whose layers have one part each (Nemotron-H)."""

from dataclasses import dataclass

from torch import Tensor

from ..layers.feed_forward import FeedForward
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class LoneFeedForward:
    """The only part of its layer. It keeps nothing in the cache."""

    feed_forward: FeedForward

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        return self.feed_forward(step.returned(normed))
