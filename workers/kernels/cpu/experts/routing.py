"""Chooses experts, brings rows to them, and adds their outputs. A row's bits depend only on that row.

How many rows an expert has is data, read by the kernels, so that a recorded step is valid for any tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....geometry.experts import NUM_SHARES, Experts
from ..buffers import Buffers
from ..library import Pool
from ..parameters import DTYPE_CODES, packer, pointer
from ..structs.experts import AddIdentitiesParams, AddSharedParams, CombineParams, DispatchParams, RouteParams

ROUTE, DISPATCH, COMBINE, ADD_SHARED = map(packer, (RouteParams, DispatchParams, CombineParams, AddSharedParams))
ADD_IDENTITIES = packer(AddIdentitiesParams)
SCORES = ("softmax", "softmax_of_chosen", "sigmoid", "sparse_mixer", "sigmoid_of_chosen")  # RouteParams.score


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """The experts of each row, and where its copies are: the rows of one expert are adjacent, in the rows' order."""

    experts: Tensor  # [rows, top_k] int32, ascending
    weights: Tensor  # [rows, top_k] float32
    places: Tensor  # [rows, top_k] int32, row of the dispatched rows; -1: the expert is on another rank
    starts: Tensor  # [held + 1] int32; this rank's expert e has the places from starts[e] to starts[e + 1]

    @property
    def max_places(self) -> int:
        return self.places.numel()

    @property
    def count_address(self) -> int:
        """The address of the number of places in use."""
        return self.starts.data_ptr() + (len(self.starts) - 1) * self.starts.element_size()


def route_experts(
    pool: Pool,
    logits: Tensor,
    experts: Experts,
    held: range,
    correction: Tensor | None,
    buffers: Buffers,
    factors: Tensor | None = None,
) -> Routing:
    """Choose from `logits` [rows, >= experts] float32, whose rows may be strided; `held` are this rank's experts.

    Identities count as experts that no rank holds. Of equal logits or scores those of lower experts are chosen.
    `correction` and `factors` [experts] are float32. The result is in `buffers`.
    """
    rows, top_k = len(logits), experts.top_k
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.shape[1] >= experts.choices
    assert logits.stride(1) == 1, logits.stride()
    for of_expert in (given for given in (correction, factors) if given is not None):
        assert of_expert.dtype == torch.float32, of_expert.dtype
        assert of_expert.shape == (experts.choices,), of_expert.shape
    chosen, places = (buffers.take(role, rows, top_k, torch.int32) for role in ("chosen experts", "places"))
    weights = buffers.take("expert weights", rows, top_k, torch.float32)
    starts = buffers.take("expert starts", 1, len(held) + 1, torch.int32).view(-1)
    written = (tensor.data_ptr() for tensor in (chosen, weights, places, starts))
    fields = ROUTE(
        *(logits.data_ptr(), pointer(correction), pointer(factors), *written, logits.stride(0)),
        *(rows, experts.choices, top_k, experts.groups, experts.top_groups, held.start, len(held)),
        *(SCORES.index(experts.score), experts.renormalises, experts.scale, experts.jitter),
    )
    pool.functions["route_experts"](pool.handle, fields)
    return Routing(chosen, weights, places, starts)


def dispatch_rows(pool: Pool, x: Tensor, routing: Routing, buffers: Buffers, *, weighed: bool = False) -> Tensor:
    """Copies of rows of `x` [rows, size] in their places, times their weights if `weighed`: [max_places, size].

    Places that are not in use may hold anything.
    """
    rows, size = x.shape
    assert x.stride(1) == 1, x.stride()
    out = buffers.take("dispatched", routing.max_places, size, x.dtype)
    weights = routing.weights.data_ptr() if weighed else 0
    pointers = out.data_ptr(), x.data_ptr(), routing.places.data_ptr(), weights
    sizes = x.stride(0), rows, size, routing.places.shape[1], DTYPE_CODES[x.dtype]
    pool.functions["dispatch_rows"](pool.handle, DISPATCH(*pointers, *sizes))
    return out


def combine_experts(
    pool: Pool, outputs: Tensor, routing: Routing, num_experts: int, shares: range, out: Tensor, *, weighed: bool = True
) -> Tensor:
    """Set `out` [rows, size] to the sum of each row's `outputs` [max_places, size] float32, rounded once.

    Outputs are multiplied by their weights if `weighed`. A share of the experts is summed in their order, from 0;
    `shares` are this rank's 1, 2 or 4, and are added as (0 + 1) + (2 + 3). Rows of `out` may be strided.
    """
    rows, size = out.shape
    assert outputs.dtype == torch.float32, outputs.dtype
    assert outputs.shape == (routing.max_places, size)
    assert outputs.is_contiguous()
    assert out.stride(1) == 1, out.stride()
    assert len(shares) in (1, 2, NUM_SHARES), shares
    weights = routing.weights.data_ptr() if weighed else 0
    pointers = out.data_ptr(), outputs.data_ptr(), routing.experts.data_ptr(), routing.places.data_ptr(), weights
    sizes = rows, size, routing.places.shape[1], num_experts, shares.start, len(shares), DTYPE_CODES[out.dtype]
    pool.functions["combine_experts"](pool.handle, COMBINE(*pointers, out.stride(0), *sizes))
    return out


def add_identities(pool: Pool, routed: Tensor, x: Tensor, routing: Routing, num_experts: int, out: Tensor) -> Tensor:
    """Set `out` [rows, size] to `routed` float32 + the weights of identities, the experts from `num_experts` on, * `x`.

    Rounded once; rows of `routed` and `x` may be strided.
    """
    rows, size = out.shape
    assert routed.dtype == torch.float32, routed.dtype
    assert x.dtype == out.dtype, (x.dtype, out.dtype)
    assert routed.shape == x.shape == out.shape
    assert routed.stride(1) == x.stride(1) == 1
    assert out.is_contiguous()
    pointers = map(pointer, (out, routed, x, routing.experts, routing.weights))
    sizes = rows, size, routing.experts.shape[1], num_experts, DTYPE_CODES[x.dtype]
    pool.functions["add_identities"](pool.handle, ADD_IDENTITIES(*pointers, routed.stride(0), x.stride(0), *sizes))
    return out


def add_shared_expert(pool: Pool, routed: Tensor, shared: Tensor, gates: Tensor | None, out: Tensor) -> Tensor:
    """Set `out` [rows, size] to `routed` + sigmoid(`gates`) * `shared`, rounded once; without `gates` to their sum.

    `routed` and `shared` are float32 of equal strides, `gates` [rows, 1] float32 of any stride.
    """
    rows, size = out.shape
    assert routed.dtype == shared.dtype == torch.float32
    assert routed.shape == shared.shape == out.shape
    assert routed.stride() == shared.stride()
    assert routed.stride(1) == 1
    assert out.is_contiguous()
    assert gates is None or (gates.dtype == torch.float32 and gates.shape == (rows, 1))
    gate, step = (0, 0) if gates is None else (gates.data_ptr(), gates.stride(0))
    pointers = out.data_ptr(), routed.data_ptr(), shared.data_ptr(), gate
    fields = ADD_SHARED(*pointers, routed.stride(0), step, rows, size, DTYPE_CODES[out.dtype])
    pool.functions["add_shared_expert"](pool.handle, fields)
    return out
