"""A mixture of experts on our CUDA kernels: a fixed sequence of launches, so that a graph holds it for any tokens."""

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.packed_weight import PackedWeight
from ...checkpoint.weight_forms import GroupedWeight, StoredWeight, Weight
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.experts import NUM_SHARES, Experts
from ...geometry.model_options import Activation
from ...kernels.cuda.elementwise import activate, activation_kernel
from ...kernels.cuda.experts.coded_weight import CodedWeight
from ...kernels.cuda.experts.combining import (
    Sums,
    clamped_gate,
    clamped_kernel,
    combine_experts,
    combine_kernel,
    join_experts,
    join_kernel,
    weigh_experts,
    weigh_kernel,
)
from ...kernels.cuda.experts.products import (
    INPUTS_MULTIPLE,
    LARGE,
    SMALL,
    Form,
    expert_product,
    product_kernel,
    segmented_product,
)
from ...kernels.cuda.experts.routing import (
    MAX_EXPERTS,
    Choice,
    Places,
    place_experts,
    place_kernel,
    route_experts,
    route_kernel,
)
from ...kernels.cuda.kernel import Kernel, Launcher
from ...layers.feed_forward import ExpertWeights
from .ops import FUNCTIONS
from .products.fixed_rows import FixedRowsLinear, empty_rows

log = logging.getLogger(__name__)

PLACES_AT_ONCE = 1 << 15  # of one pass; bounds the memory of a long prompt's outputs: 268 MB for 2,048 dims
ROUTER_SEGMENTS = (16, 8, 4, 2)  # of the router's inputs, so that a few rows occupy more than a few multiprocessors
LEAST_SEGMENT = 64  # inputs


class CudaExperts:
    """Each rank computes its own experts, and its share of the shared expert's width, for all tokens.

    Outputs stay float32 until the last addition: each rank's sums are exchanged once, added and rounded once.
    """

    def __init__(
        self,
        launcher: Launcher,
        experts: Experts,
        activation: Activation,
        weights: ExpertWeights,
        group: TensorParallelGroup,
    ):
        router = weights.router
        assert isinstance(router, FixedRowsLinear), type(router)
        self._launcher = launcher
        self._experts = experts
        self._activation = activation
        self._group = group
        self._dtype = router.weight.dtype
        self._router, self._correction = self._floats(router.weight), weights.correction
        self._factors = weights.factors
        self._gate_up, self._down = (self._numbers_or_codes(weight) for weight in (weights.gate_up, weights.down))
        biases = None if router.bias is None else router.bias[: experts.count], weights.gate_up_bias, weights.down_bias
        self._router_bias, self._gate_up_bias, self._down_bias = map(_float32, biases)
        self._shared_gate_up = weights.shared_gate_up
        self._shared_down = None if weights.shared_down is None else self._floats(weights.shared_down)
        self._hidden = router.weight.shape[1]
        _check(experts, self._hidden, group.size)
        self._router_segments = _router_segments(self._hidden)
        self._segments = _shared_segments(experts.shared_size, group.size)
        self._held = experts.held_by(group.rank, group.size)
        shares = NUM_SHARES // group.size
        self._shares = range(group.rank * shares, (group.rank + 1) * shares)

    def __call__(self, normed: Tensor, logits: Tensor | None = None) -> Tensor:
        rows_at_once = max(1, PLACES_AT_ONCE // self._experts.top_k)
        out = empty_rows(normed, self._hidden)
        for start in range(0, len(normed), rows_at_once):
            rows = slice(start, start + rows_at_once)
            self._compute(normed[rows], None if logits is None else logits[rows], out[rows])
        return out

    def kernels(self) -> Iterator[Kernel]:
        """The kernels that it launches."""
        experts, dtype, hidden, size = self._experts, self._dtype, self._hidden, self._group.size
        yield route_kernel(experts)
        yield place_kernel(experts.top_k)
        for shape in (SMALL, LARGE):
            yield product_kernel(dtype, dtype, shape, Form.of(self._gate_up))
            yield product_kernel(dtype, torch.float32, shape, Form.of(self._down))
            if self._segments or not self._experts.is_beside_dense:
                yield product_kernel(dtype, torch.float32, shape)  # of the router and the shared expert
        if experts.weighs_inputs:
            yield weigh_kernel(dtype, hidden, experts.top_k)
        for width in filter(None, (experts.intermediate_size, experts.shared_size // size)):
            if self._activation.kind == "clamped":
                yield clamped_kernel(dtype, width)
            else:
                yield activation_kernel(dtype, width, FUNCTIONS[self._activation.kind], self._activation.is_gated)
        sums = Sums(len(self._shares), self._segments, size > 1)
        yield combine_kernel(torch.bfloat16 if sums.is_part else dtype, hidden, experts.top_k, sums)
        if size > 1:
            yield join_kernel(dtype, hidden, size, self._segments > 0)

    def _compute(self, x: Tensor, given: Tensor | None, out: Tensor) -> None:
        """Set `out` [rows, hidden] to the feed-forward of `x`, whose logits may be `given`."""
        launcher, experts = self._launcher, self._experts
        if given is None:
            logits = segmented_product(launcher, x, self._router, self._router_segments)
        else:
            logits = given.float().unsqueeze(0)
        choice = route_experts(launcher, logits, experts, self._router_bias, self._correction, self._factors)
        places = place_experts(launcher, choice.experts, self._held)
        outputs, shared = self._outputs(x, choice, places), self._shared(x)
        sums = choice, places, experts.count, self._shares
        weighed = not experts.weighs_inputs
        if self._group.size == 1:
            combine_experts(launcher, outputs, *sums, out, shared=shared, weighed=weighed)
            return
        columns = self._hidden if shared is None else 2 * self._hidden
        part = torch.empty((len(x), columns), dtype=torch.float32, device=x.device)
        combine_experts(launcher, outputs, *sums, part, shared=shared, weighed=weighed)
        join_experts(launcher, self._group.stack(part), choice.gates, out)

    def _outputs(self, x: Tensor, choice: Choice, places: Places) -> Tensor:
        """The output of each place, [places, hidden] float32."""
        launcher, experts, count = self._launcher, self._experts, places.places.numel()
        weighs = experts.weighs_inputs
        rows = weigh_experts(launcher, x, choice, places) if weighs else x
        gate_up = x.new_empty((count, self._activation.inputs(experts.intermediate_size)))
        expert_product(launcher, rows, self._gate_up, self._gate_up_bias, places, gate_up, gathers=not weighs)
        activated = self._activated(gate_up, places.count_address)
        outputs = torch.empty((count, self._hidden), dtype=torch.float32, device=x.device)
        return expert_product(launcher, activated, self._down, self._down_bias, places, outputs)

    def _shared(self, x: Tensor) -> Tensor | None:
        """The shared expert's output in segments of its width, [segments, rows, hidden] float32."""
        if self._shared_gate_up is None or self._shared_down is None:
            return None
        activated = self._activated(self._shared_gate_up(x), None)
        return segmented_product(self._launcher, activated, self._shared_down, self._segments)

    def _activated(self, gate_up: Tensor, count: int | None) -> Tensor:
        activation = self._activation
        if activation.kind == "clamped":
            return clamped_gate(self._launcher, gate_up, activation, count)
        function = FUNCTIONS[activation.kind]
        return activate(self._launcher, gate_up, function, activation.is_gated, count=count)

    def _numbers_or_codes(self, weight: Weight) -> Tensor | CodedWeight:
        return CodedWeight.of(weight) if isinstance(weight, GroupedWeight) else self._floats(weight)

    def _floats(self, weight: Weight) -> Tensor:
        """`weight` in the model's dtype, at an address that 16-byte copies can read."""
        if isinstance(weight, Tensor):
            return weight if weight.data_ptr() % 16 == 0 else weight.clone()
        assert not isinstance(weight, StoredWeight | PackedWeight), type(weight)  # not accepted
        log.info("experts quantized to %s are dequantized to %s on CUDA", type(weight).__name__, self._dtype)
        return weight.dequantized().to(self._dtype)


def _float32(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float().contiguous()


def _router_segments(inputs: int) -> int:
    """A function of the model alone, because it decides the order of additions."""
    fits = (n for n in ROUTER_SEGMENTS if inputs % (n * INPUTS_MULTIPLE) == 0 and inputs // n >= LEAST_SEGMENT)
    return next(fits, 1)


def _shared_segments(width: int, num_ranks: int) -> int:
    """The segments of one rank's share of the shared expert's `width`: of four in all, or of two or one."""
    if not width:
        return 0
    whole = next(n for n in (4, 2, 1) if n == 1 or width % (n * INPUTS_MULTIPLE) == 0)
    return max(1, whole // num_ranks)


def _check(experts: Experts, hidden: int, num_ranks: int) -> None:
    """Raises ConfigError naming the size that the kernels do not support."""
    if experts.identities:
        raise ConfigError(
            f"config.json: zero_expert_num={experts.identities}, experts that return their input, have no CUDA kernel; "
            "use --device cpu"
        )
    share = experts.shared_size // num_ranks
    sizes = {
        "hidden_size": hidden,
        "the experts' intermediate size": experts.intermediate_size,
        f"the shared expert's intermediate size on each of {num_ranks} ranks": share,
    }
    for name, size in sizes.items():
        if size % INPUTS_MULTIPLE:
            raise ConfigError(
                f"config.json: {name}, {size}, must be a multiple of {INPUTS_MULTIPLE} for the CUDA kernels of "
                "experts; use --device cpu"
            )
    if experts.count > MAX_EXPERTS:
        raise ConfigError(
            f"config.json: {experts.count} experts are more than the CUDA kernels' {MAX_EXPERTS}; use --device cpu"
        )
