"""A mixture of attention heads (JetMoe): experts project queries and outputs, and share keys and values."""

from dataclasses import dataclass

from torch import Tensor

from ..geometry.layer_options import AttentionOptions
from ..layers.attention import AttentionBackend, AttentionExperts
from ..layers.linear import Linear
from ..layers.ops import Ops
from .mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOfHeads:
    """The queries of each expert that a token chose attend alone, one for each KV head."""

    layer: int
    keys_values: Linear  # keys, then values
    experts: AttentionExperts
    options: AttentionOptions
    ops: Ops
    backend: AttentionBackend

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        together = normed  # is replaced: a token chooses at least one expert
        for choice, projected in enumerate(self.experts.projected(normed, self.keys_values(normed))):
            if choice == 0:
                query = self.ops.rotate_and_cache(step.ops, self.layer, projected, None, None)
            else:
                query = self.ops.rotate_queries(step.ops, self.layer, projected, None)
            attended = self.backend.attend(step.attention, self.layer, query, self.options).flatten(1)
            together = self.experts.kept(choice, attended)
        return self.experts.output(step.returned(normed), step.returned(together))
