"""Operations of some families on the results of a projection, as Linears that wrap it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..distributed.tensor_parallel import TensorParallelGroup
from ..geometry.model_options import Activation
from ..layers.linear import Linear
from ..layers.norm import Norm, RMSNorm
from ..layers.ops import Ops

Span = tuple[int, int]  # columns [start, stop)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Two projections, one after the other."""

    down: Linear
    up: Linear
    columns: int  # results of `up` on this rank


class ClippedLinear:
    """Clips the projection's results to [-limit, limit]."""

    def __init__(self, product: Linear, ops: Ops, limit: float):
        self._product = product
        self._ops = ops
        self._limit = limit

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.clip(self._product(x), self._limit)


class PredictingLinear:
    """The product of what a prediction head makes of its inputs: a projection, its activation and a norm."""

    def __init__(self, product: Linear, dense: Linear, activation: Activation, norm: Norm, ops: Ops):
        self._product = product
        self._dense = dense
        self._activation = activation
        self._norm = norm
        self._ops = ops

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(self._ops.norm(self._ops.activate(self._dense(x), self._activation), self._norm))


class ScaledLinear:
    """Multiplies each column of the projection's results by its factor, after they are rounded.

    The factors are not folded into the weights: weights times a factor would be rounded to the model's dtype once more,
    or, if they are quantized, have other scales.
    """

    def __init__(self, product: Linear, ops: Ops, factors: Tensor):
        self._product = product
        self._ops = ops
        self._factors = factors  # [outputs] float32

    def __call__(self, x: Tensor) -> Tensor:
        projected = self._product(x)
        return self._ops.scale(projected, self._factors, out=projected)


class AdaptedLinear:
    """A product to whose columns the results of further products of low rank are added, after all are rounded."""

    def __init__(self, product: Linear, adapters: Sequence[Adapter], ops: Ops, device: torch.device | str):
        self._product = product
        self._adapters = adapters
        self._ops = ops
        self._ones = torch.ones(sum(adapter.columns for adapter in adapters), device=device)

    def __call__(self, x: Tensor) -> Tensor:
        total, at = self._ops.scale(self._product(x), self._ones), 0  # a copy: the next product may overwrite it
        for adapter in self._adapters:
            self._ops.add(total[:, at : at + adapter.columns], adapter.up(adapter.down(x)))
            at += adapter.columns
        return total


class NormedLinear:
    """The product of inputs that are normalised as one vector, of which each rank has a share; the ranks gather it."""

    def __init__(self, product: Linear, ops: Ops, group: TensorParallelGroup, norm: RMSNorm, span: Span):
        self._product = product  # of this rank's share
        self._ops = ops
        self._group = group
        self._norm = norm  # of all inputs
        self._span = span

    def __call__(self, x: Tensor) -> Tensor:
        if self._group.size == 1:
            return self._product(self._ops.norm(x, self._norm))
        whole = gathered(self._group, x.contiguous(), len(self._norm.weight))
        return self._product(self._ops.norm(whole, self._norm)[:, slice(*self._span)].contiguous())


class WholeNorms:
    """Normalises the queries of all heads as one vector, and likewise the keys; the ranks gather all heads first.

    A row's bits do not depend on the number of ranks: each rank normalises all heads and keeps its own.
    """

    def __init__(
        self, product: Linear, ops: Ops, group: TensorParallelGroup, norms: Sequence[RMSNorm], spans: Sequence[Span]
    ):
        self._product = product  # [rows, queries + keys + values of this rank]
        self._ops = ops
        self._group = group
        self._norms = norms  # of queries and of keys; every rank holds both completely
        self._spans = spans  # this rank's columns of all queries, and of all keys

    def __call__(self, x: Tensor) -> Tensor:
        projected, at = self._product(x), 0
        for norm, (start, stop) in zip(self._norms, self._spans, strict=True):
            part = projected[:, at : at + stop - start]
            at += stop - start
            if self._group.size == 1:
                self._ops.norm(part, norm, out=part)
            else:
                whole = gathered(self._group, part.contiguous(), len(norm.weight))
                part.copy_(self._ops.norm(whole, norm)[:, start:stop])
        return projected


def gathered(group: TensorParallelGroup, part: Tensor, size: int) -> Tensor:
    """The parts of all ranks concatenated, [rows, size]; a part that several ranks hold appears once."""
    copies = group.size * part.shape[1] // size
    ranks = group.stack(part)[::copies]
    return ranks.transpose(0, 1).reshape(len(part), size)
