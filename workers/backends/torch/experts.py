"""A mixture of experts in plain torch: the reference for the kernels, and the fallback without them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.experts import NUM_SHARES, Experts
from ...geometry.model_options import Activation
from ...layers.activation import activated
from ...layers.linear import Linear

LEAST_SUM = 1e-20  # of weights, so that none of them is divided by zero


class TorchExperts:
    """Each rank computes its own experts; outputs are added in float32, in the order of experts, as by the kernels."""

    def __init__(
        self,
        experts: Experts,
        activation: Activation,
        router: Linear,
        correction: Tensor | None,
        products: Sequence[tuple[Linear, Linear]],
        shared: tuple[Linear, Linear] | None,
        group: TensorParallelGroup,
        factors: Tensor | None = None,
    ):
        self._experts = experts
        self._factors = factors  # of the weights of each expert
        self._activation = activation
        self._router = router
        self._correction = correction
        self._products = products  # gate and up, then down, of each expert of this rank
        self._shared = shared  # gate and up, then down, of the shared expert
        self._group = group

    def __call__(self, normed: Tensor, logits: Tensor | None = None) -> Tensor:
        experts, group = self._experts, self._group
        logits = (self._router(normed) if logits is None else logits).float()
        chosen, weights = route(logits[:, : experts.choices], experts, self._correction)
        if self._factors is not None:
            weights = weights * self._factors[chosen]
        sums = [torch.zeros(normed.shape, dtype=torch.float32, device=normed.device) for _ in range(NUM_SHARES)]
        for expert, products in zip(experts.held_by(group.rank, group.size), self._products, strict=True):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            if len(rows):
                sums[experts.share_of(expert)][rows] += self._output(normed[rows], weights[rows, places], products)
        shares = NUM_SHARES // group.size
        total = added(sums[group.rank * shares : (group.rank + 1) * shares])
        if group.size > 1:
            total = added(group.stack(total).unbind())
        if experts.identities:
            of_identities = _sum(torch.where(chosen >= experts.count, weights, 0.0))
            return (total + of_identities * normed.float()).to(normed.dtype)
        if self._shared is None:
            return total.to(normed.dtype)
        gate_up, down = self._shared
        shared = down(activated(gate_up(normed), self._activation)).float()
        gate = _sigmoid(logits[:, experts.count :]) if experts.has_shared_gate else 1.0
        return (total + gate * shared).to(normed.dtype)

    def _output(self, x: Tensor, weights: Tensor, products: tuple[Linear, Linear]) -> Tensor:
        """The weighed output of one expert for its rows, float32."""
        gate_up, down = products
        if self._experts.weighs_inputs:
            x, weights = (x.float() * weights.unsqueeze(1)).to(x.dtype), torch.ones_like(weights)
        return down(activated(gate_up(x), self._activation)).float() * weights.unsqueeze(1)


class TorchAttentionExperts:
    """Each rank computes its own experts, and attention of its own KV heads."""

    def __init__(
        self,
        experts: Experts,
        router: Linear,
        products: Sequence[tuple[Linear, Linear]],
        group: TensorParallelGroup,
    ):
        self._experts = experts
        self._router = router
        self._products = products  # to queries, and from attention's results to outputs, of each expert of this rank
        self._group = group
        self._kept: list[Tensor] = []

    def projected(self, normed: Tensor, keys_values: Tensor) -> Sequence[Tensor]:
        experts, group = self._experts, self._group
        chosen, _ = self._routing(normed)
        found = torch.zeros(*chosen.shape, experts.intermediate_size, device=normed.device)
        for expert, (queries, _) in zip(experts.held_by(group.rank, group.size), self._products, strict=True):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            if len(rows):
                found[rows, places] = queries(normed[rows]).float()
        every = found if group.size == 1 else added(group.stack(found).unbind())
        mine = every.chunk(group.size, dim=2)[group.rank].to(normed.dtype)
        return [torch.cat([mine[:, 0], keys_values], 1), *mine.unbind(1)[1:]]

    def kept(self, choice: int, attended: Tensor) -> Tensor:
        self._kept = [*self._kept[:choice], attended]
        return torch.cat(self._kept, 1)

    def output(self, normed: Tensor, attended: Tensor) -> Tensor:
        experts, group = self._experts, self._group
        chosen, weights = self._routing(normed)
        every = attended.view(len(normed), experts.top_k, -1)
        if group.size > 1:
            every = torch.cat(group.stack(every.contiguous()).unbind(), 2)
        sums = [torch.zeros(normed.shape, dtype=torch.float32, device=normed.device) for _ in range(NUM_SHARES)]
        for expert, (_, outputs) in zip(experts.held_by(group.rank, group.size), self._products, strict=True):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            if len(rows):
                of_expert = outputs(every[rows, places]).float() * weights[rows, places].unsqueeze(1)
                sums[experts.share_of(expert)][rows] += of_expert
        shares = NUM_SHARES // group.size
        total = added(sums[group.rank * shares : (group.rank + 1) * shares])
        return (total if group.size == 1 else added(group.stack(total).unbind())).to(normed.dtype)

    def _routing(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        return route(self._router(normed).float()[:, : self._experts.count], self._experts, None)


def route(logits: Tensor, experts: Experts, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Choose from `logits` [rows, experts] float32: experts [rows, top_k], ascending, and their weights.

    Of equal logits or scores those of lower experts are chosen. csrc/cpu/experts/route.cpp does the same.
    """
    if experts.score == "sparse_mixer":
        chosen, weights = _mixed(logits, experts)
    else:
        scores = SCORES[experts.score](logits) if experts.score in SCORES else logits
        choice = scores if correction is not None or experts.groups > 1 else logits
        choice = choice if correction is None else choice + correction
        chosen = _highest(_in_top_groups(choice, experts), experts.top_k)
        weights = scores.gather(1, chosen)
        weights = OF_CHOSEN[experts.score](weights) if experts.score in OF_CHOSEN else weights
    if experts.renormalises:
        weights = weights / (_sum(weights) + LEAST_SUM)
    return chosen, weights * experts.scale


def _highest(values: Tensor, count: int) -> Tensor:
    """The columns of each row's `count` highest values, ascending; among equals the first."""
    return torch.sort(values, dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values


def _in_top_groups(choice: Tensor, experts: Experts) -> Tensor:
    """`choice`, with -infinity outside of the best groups: by their two highest values, with softmax by the highest."""
    if experts.groups == 1:
        return choice
    grouped = choice.view(len(choice), experts.groups, -1)
    counted = 1 if experts.score == "softmax" else 2
    best = grouped.sort(dim=2, descending=True).values[:, :, :counted].sum(2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _highest(best, experts.top_groups), True)
    return grouped.masked_fill(~kept.unsqueeze(2), -torch.inf).flatten(1)


def _mixed(logits: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """The sparse mixer: experts one after another, each weighed by its softmax among the near ones that are left."""
    left, chosen, weights = logits.clone(), [], []
    for _ in range(experts.top_k):
        best = _highest(left, 1)
        top = left.gather(1, best)
        far = (top - logits) / torch.maximum(logits.abs(), top) > 2 * experts.jitter
        weights.append(_softmax(left.masked_fill(far, -torch.inf)).gather(1, best))
        chosen.append(best)
        left.scatter_(1, best, -torch.inf)
    experts_of_row, order = torch.cat(chosen, 1).sort(dim=1)
    return experts_of_row, torch.cat(weights, 1).gather(1, order)


def _softmax(x: Tensor) -> Tensor:
    powers = (x - x.amax(1, keepdim=True)).exp_()
    return powers / _sum(powers)


def _sigmoid(x: Tensor) -> Tensor:
    return 1.0 / (1.0 + (-x).exp())


def _sum(x: Tensor) -> Tensor:
    """The sum of each row, [rows, 1], in the order of its elements, so that it depends only on that row."""
    total = torch.zeros_like(x[:, :1])
    for column in range(x.shape[1]):
        total += x[:, column : column + 1]
    return total


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of 1, 2 or 4 parts, as (0 + 1) + (2 + 3)."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return added(parts[:half]) + added(parts[half:])


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
}
OF_CHOSEN: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax_of_chosen": _softmax,
    "sigmoid_of_chosen": _sigmoid,
}
