"""A mixture of attention heads on our CPU kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ....checkpoint.packed_weight import PackedWeight
from ....distributed.tensor_parallel import TensorParallelGroup
from ....geometry.experts import NUM_SHARES, Experts
from ....kernels.cpu.buffers import Buffers
from ....kernels.cpu.experts.products import expert_gemm
from ....kernels.cpu.experts.routing import Routing, combine_experts, dispatch_rows, route_experts
from ....kernels.cpu.gemm import sum_parts
from ....kernels.cpu.library import Pool
from ....kernels.cpu.recurrent.factors import copy_rows, scale_columns
from ....layers.attention import AttentionExpertWeights


class PackedAttentionExperts:
    """Each rank computes its own experts for all tokens, and attention of its own KV heads.

    So the bits do not depend on the number of ranks: a query or an output is computed whole by one rank, and outputs
    are added as in PackedExperts.
    """

    def __init__(
        self,
        pool: Pool,
        buffers: Buffers,
        experts: Experts,
        weights: AttentionExpertWeights,
        group: TensorParallelGroup,
    ):
        assert isinstance(weights.queries, PackedWeight)
        assert isinstance(weights.output, PackedWeight)
        self._pool = pool
        self._buffers = buffers
        self._experts = experts
        self._router = weights.router
        self._queries, self._output, self._bias = weights.queries, weights.output, weights.bias.float()
        self._group = group
        self._held = experts.held_by(group.rank, group.size)
        shares = NUM_SHARES // group.size
        self._shares = range(group.rank * shares, (group.rank + 1) * shares)
        self._size = experts.intermediate_size  # of all KV heads
        self._own = self._size // group.size
        self._ones = torch.ones(2 * self._own)

    def projected(self, normed: Tensor, keys_values: Tensor) -> Sequence[Tensor]:
        tokens, own, pool = len(normed), self._own, self._pool
        first = self._buffers.take("first queries", tokens, 3 * own, normed.dtype)
        scale_columns(pool, keys_values, self._ones, first[:, own:])  # before the next product overwrites them
        queries = self._all_queries(normed).view(tokens, self._experts.top_k, self._size)
        mine = queries[:, :, self._group.rank * own : (self._group.rank + 1) * own]
        scale_columns(pool, mine[:, 0], self._ones[:own], first[:, :own])
        rest = range(1, self._experts.top_k)
        into = {each: self._buffers.take(f"queries {each}", tokens, own, normed.dtype) for each in rest}
        return [first, *(copy_rows(pool, mine[:, each], into[each]) for each in rest)]

    def kept(self, choice: int, attended: Tensor) -> Tensor:
        own, top_k = self._own, self._experts.top_k
        together = self._buffers.take("attended by experts", len(attended), top_k * own, attended.dtype)
        scale_columns(self._pool, attended, self._ones[:own], together[:, choice * own : (choice + 1) * own])
        return together

    def output(self, normed: Tensor, attended: Tensor) -> Tensor:
        pool, buffers, (tokens, hidden) = self._pool, self._buffers, normed.shape
        routing, every = self._routing(normed), self._of_all_heads(attended)
        rows = dispatch_rows(pool, every, _of_choices(routing), buffers)
        outputs = buffers.take("outputs of places", routing.max_places, hidden, torch.float32)
        expert_gemm(pool, rows, self._output, self._bias, routing, outputs, buffers)
        out = buffers.take("product", tokens, hidden, normed.dtype)
        return self._combined(outputs, routing, out, weighed=True)

    def _all_queries(self, normed: Tensor) -> Tensor:
        """[tokens * top_k, size], of all KV heads."""
        pool, buffers, routing = self._pool, self._buffers, self._routing(normed)
        rows = dispatch_rows(pool, normed, routing, buffers)
        found = buffers.take("queries of places", routing.max_places, self._size, torch.float32)
        expert_gemm(pool, rows, self._queries, None, routing, found, buffers)
        out = buffers.take("queries of experts", routing.max_places, self._size, normed.dtype)
        return self._combined(found, _of_choices(routing), out, weighed=False)

    def _routing(self, normed: Tensor) -> Routing:
        return route_experts(self._pool, self._router(normed), self._experts, self._held, None, self._buffers)

    def _combined(self, found: Tensor, routing: Routing, out: Tensor, *, weighed: bool) -> Tensor:
        count, group = self._experts.count, self._group
        if group.size == 1:
            return combine_experts(self._pool, found, routing, count, self._shares, out, weighed=weighed)
        rows, columns = out.shape
        part = self._buffers.take("part", rows, columns, torch.float32)
        combine_experts(self._pool, found, routing, count, self._shares, part, weighed=weighed)
        return sum_parts(self._pool, group.stack(part), None, out)

    def _of_all_heads(self, attended: Tensor) -> Tensor:
        """[tokens * top_k, size]."""
        choices = attended.view(-1, self._own)
        if self._group.size == 1:
            return choices
        return self._group.stack(choices).transpose(0, 1).reshape(len(choices), -1)


def _of_choices(routing: Routing) -> Routing:
    """Each choice of a token as a row with one expert."""
    experts, weights, places = (each.view(-1, 1) for each in (routing.experts, routing.weights, routing.places))
    return Routing(experts, weights, places, routing.starts)
