"""Projections, the embedding and the output head with what adapters add to them."""

from dataclasses import dataclass

from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Deltas
from ...distributed.tensor_parallel import TensorParallelGroup
from ..embedding import VocabularyEmbedding
from ..linear import Linear
from .ops import AdapterOps


@dataclass(slots=True, eq=False)
class StepAdapters:
    """The adapters of the rows of the running pass; the runner sets them before each pass. None: no row has one."""

    tokens: AdapterGroups | None = None  # of all tokens
    logits: AdapterGroups | None = None  # of the hidden states whose logits are computed


class AdaptedLinear:
    """A product of all tokens. With a `group`, the inputs are divided among its ranks."""

    def __init__(
        self,
        product: Linear,
        deltas: Deltas,
        ops: AdapterOps,
        step: StepAdapters,
        group: TensorParallelGroup | None = None,
    ):
        self.product = product
        self.deltas = deltas
        self._ops = ops
        self._step = step
        self._group = group or TensorParallelGroup()

    def __call__(self, x: Tensor) -> Tensor:
        return self._added(x, self._step.tokens)

    def _added(self, x: Tensor, groups: AdapterGroups | None) -> Tensor:
        if groups is not None:
            self._ops.announce(self.deltas, groups, x, self._group.size > 1)
        y = self.product(x)
        if groups is not None:
            sums = self._ops.shrink(self.deltas, groups, x)
            shares = sums.unsqueeze(0) if self._group.size == 1 else self._group.stack(sums)
            self._ops.expand(self.deltas, groups, shares, y)
        return y


class AdaptedHead(AdaptedLinear):
    """A product of the hidden states whose logits are computed."""

    def __call__(self, x: Tensor) -> Tensor:
        return self._added(x, self._step.logits)


class AdaptedEmbedding(VocabularyEmbedding):
    """The token embedding. Every rank holds what adapters add to all of it, and adds it after the ranks' exchange."""

    def __init__(self, embedding: VocabularyEmbedding, deltas: Deltas, ops: AdapterOps, step: StepAdapters):
        self._embedding = embedding
        self.table = embedding.table
        self.deltas = deltas
        self._ops = ops
        self._step = step

    @property
    def without_adapters(self) -> VocabularyEmbedding:
        return self._embedding

    def __call__(self, token_ids: Tensor) -> Tensor:
        hidden = self._embedding(token_ids)
        if (groups := self._step.tokens) is not None:
            sums = self._ops.look_up(self.deltas, groups, token_ids)
            self._ops.expand(self.deltas, groups, sums.unsqueeze(0), hidden)
        return hidden
