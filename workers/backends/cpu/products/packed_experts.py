"""A mixture of experts on our CPU kernels."""

import torch
from torch import Tensor

from ....checkpoint.packed_weight import PackedWeight
from ....distributed.tensor_parallel import TensorParallelGroup
from ....geometry.experts import NUM_SHARES, Experts
from ....geometry.model_options import Activation
from ....kernels.cpu.buffers import Buffers
from ....kernels.cpu.elementwise import activate
from ....kernels.cpu.experts.products import activate_places, expert_gemm
from ....kernels.cpu.experts.routing import (
    Routing,
    add_identities,
    add_shared_expert,
    combine_experts,
    dispatch_rows,
    route_experts,
)
from ....kernels.cpu.gemm import gemm, sum_parts
from ....kernels.cpu.library import Pool
from ....layers.feed_forward import ExpertWeights


class PackedExperts:
    """Each rank computes its own experts, and its share of the shared expert's width, for all tokens.

    Outputs stay float32 until the last addition: each rank's sums are exchanged once, added and rounded once. The
    bits do not depend on the number of ranks.
    """

    def __init__(
        self,
        pool: Pool,
        buffers: Buffers,
        experts: Experts,
        activation: Activation,
        weights: ExpertWeights,
        shared_segments: int,
        group: TensorParallelGroup,
    ):
        assert isinstance(weights.gate_up, PackedWeight)
        assert isinstance(weights.down, PackedWeight)
        assert weights.shared_down is None or isinstance(weights.shared_down, PackedWeight)
        self._pool = pool
        self._buffers = buffers
        self._experts = experts
        self._activation = activation
        self._weights = weights
        self._gate_up, self._down, self._shared_down = weights.gate_up, weights.down, weights.shared_down
        self._gate_up_bias, self._down_bias = map(_float, (weights.gate_up_bias, weights.down_bias))
        self._shared_segments = shared_segments
        self._group = group
        self._held = experts.held_by(group.rank, group.size)
        shares = NUM_SHARES // group.size
        self._shares = range(group.rank * shares, (group.rank + 1) * shares)

    def __call__(self, normed: Tensor, logits: Tensor | None = None) -> Tensor:
        (rows, hidden), buffers, experts, weights = normed.shape, self._buffers, self._experts, self._weights
        logits = weights.router(normed) if logits is None else logits
        routing = route_experts(self._pool, logits, experts, self._held, weights.correction, buffers, weights.factors)
        outputs, out = self._outputs(normed, routing), buffers.take("product", rows, hidden, normed.dtype)
        if self._shared_down is None and self._group.size == 1 and not experts.identities:
            return self._combined(outputs, routing, out)
        columns = hidden if self._shared_down is None else 2 * hidden
        part = buffers.take("part", rows, columns, torch.float32)
        self._combined(outputs, routing, part[:, :hidden])
        if experts.identities:
            if self._group.size > 1:
                total = buffers.take("total", rows, columns, torch.float32)
                part = sum_parts(self._pool, self._group.stack(part), None, total)
            return add_identities(self._pool, part, normed, routing, experts.count, out)
        if self._shared_down is None:
            return sum_parts(self._pool, self._group.stack(part), None, out)
        self._compute_shared(normed, part[:, hidden:])
        if self._group.size > 1:
            total = buffers.take("total", rows, columns, torch.float32)
            part = sum_parts(self._pool, self._group.stack(part), None, total)
        gates = logits[:, experts.count :] if experts.has_shared_gate else None
        return add_shared_expert(self._pool, part[:, :hidden], part[:, hidden:], gates, out)

    def _outputs(self, normed: Tensor, routing: Routing) -> Tensor:
        """The output of each place, [places, hidden] float32."""
        pool, buffers, places = self._pool, self._buffers, routing.max_places
        rows = dispatch_rows(pool, normed, routing, buffers, weighed=self._experts.weighs_inputs)
        width = self._activation.inputs(self._experts.intermediate_size)
        gate_up = buffers.take("gates of places", places, width, normed.dtype)
        expert_gemm(pool, rows, self._gate_up, self._gate_up_bias, routing, gate_up, buffers)
        activated = activate_places(pool, gate_up, self._activation, routing, buffers)
        outputs = buffers.take("outputs of places", places, normed.shape[1], torch.float32)
        return expert_gemm(pool, activated, self._down, self._down_bias, routing, outputs, buffers)

    def _combined(self, outputs: Tensor, routing: Routing, out: Tensor) -> Tensor:
        weighed, count = not self._experts.weighs_inputs, self._experts.count
        return combine_experts(self._pool, outputs, routing, count, self._shares, out, weighed=weighed)

    def _compute_shared(self, normed: Tensor, out: Tensor) -> None:
        assert self._weights.shared_gate_up is not None
        assert self._shared_down is not None
        gate_up = self._weights.shared_gate_up(normed)
        activated = self._buffers.take("activated", len(normed), self._shared_down.inputs, normed.dtype)
        activate(self._pool, gate_up, self._activation, activated)
        segments = self._shared_segments
        gemm(self._pool, activated, self._shared_down, out=out, buffers=self._buffers, segments=segments)


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()
