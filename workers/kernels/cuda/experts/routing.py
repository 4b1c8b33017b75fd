"""Chooses the experts of each row, and places rows side by side, sorted by expert. Results stay on the device."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from ....geometry.experts import Experts
from ..kernel import Kernel, Launcher, pointer

WARPS, PLACE_THREADS = 4, 256
MAX_EXPERTS = 1024  # 32 a lane


class RouteExpertsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("experts", "weights", "gates", "logits")),
        *((name, ctypes.c_void_p) for name in ("bias", "correction", "factors")),
        *((name, ctypes.c_int) for name in ("rows", "segments")),
        *((name, ctypes.c_float) for name in ("scale", "jitter")),
    )


class PlaceExpertsParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("places", "sources", "starts", "experts")),
        *((name, ctypes.c_int) for name in ("rows", "first", "held")),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The experts of each row."""

    experts: Tensor  # [rows, top_k] int32, ascending
    weights: Tensor  # [rows, top_k] float32
    gates: Tensor | None  # [rows] float32, the factors of the shared expert


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where each row's copies are: the rows of one expert are adjacent, in the rows' order."""

    places: Tensor  # [rows, top_k] int32, -1: the expert is on another rank
    sources: Tensor  # [rows * top_k] int32, row of each place in use
    starts: Tensor  # [held + 1] int32; this rank's expert e has the places from starts[e] to starts[e + 1]

    @property
    def count_address(self) -> int:
        """The address of the number of places in use."""
        return self.starts.data_ptr() + (len(self.starts) - 1) * self.starts.element_size()


def route_experts(
    launcher: Launcher,
    logits: Tensor,
    experts: Experts,
    bias: Tensor | None,
    correction: Tensor | None,
    factors: Tensor | None = None,
) -> Choice:
    """Choose from `logits` [segments, rows, experts] float32, which are added; then `bias` [experts] float32 is added.

    With a shared gate there is one more column. Of equal logits or scores those of lower experts are chosen. `factors`
    [experts] float32 multiply the weights at the end.
    """
    segments, rows, columns = logits.shape
    device, top_k = logits.device, experts.top_k
    assert logits.dtype == torch.float32, logits.dtype
    assert logits.is_contiguous()
    assert columns == experts.count + experts.has_shared_gate, columns
    for vector in (bias, correction, factors):
        assert vector is None or (vector.dtype == torch.float32 and vector.shape == (experts.count,))
    chosen = torch.empty((rows, top_k), dtype=torch.int32, device=device)
    weights = torch.empty((rows, top_k), dtype=torch.float32, device=device)
    gates = torch.empty(rows, dtype=torch.float32, device=device) if experts.has_shared_gate else None
    pointers = map(pointer, (chosen, weights, gates, logits, bias, correction, factors))
    params = RouteExpertsParams(*pointers, rows, segments, experts.scale, experts.jitter)
    if rows:
        launcher.launch(route_kernel(experts), (-(-rows // WARPS), 1, 1), params)
    return Choice(chosen, weights, gates)


def route_kernel(experts: Experts) -> Kernel:
    """The kernel; a warp has a row."""
    assert experts.count <= MAX_EXPERTS, experts.count
    defines = (
        *(("EXPERTS", experts.count), ("TOP_K", experts.top_k), ("SCORE", experts.score.upper())),
        *(("GROUPS", experts.groups), ("TOP_GROUPS", experts.top_groups)),
        *(("RENORMALISES", int(experts.renormalises)), ("HAS_GATE", int(experts.has_shared_gate))),
    )
    return Kernel("experts/route.cu", "route_experts", defines, WARPS * 32, shared_bytes=WARPS * experts.count * 4)


def place_experts(launcher: Launcher, chosen: Tensor, held: range) -> Places:
    """The places of `chosen` [rows, top_k] int32 on the rank with the experts `held`."""
    rows, top_k = chosen.shape
    assert chosen.dtype == torch.int32, chosen.dtype
    assert chosen.is_contiguous()
    places = torch.empty_like(chosen)
    sources = chosen.new_empty(rows * top_k)
    starts = chosen.new_empty(len(held) + 1)
    pointers = (tensor.data_ptr() for tensor in (places, sources, starts, chosen))
    launcher.launch(
        place_kernel(top_k), (len(held) + 1, 1, 1), PlaceExpertsParams(*pointers, rows, held.start, len(held))
    )
    return Places(places, sources, starts)


def place_kernel(top_k: int) -> Kernel:
    shared_bytes = PLACE_THREADS // 32 * 4
    return Kernel("experts/places.cu", "place_experts", (("TOP_K", top_k),), PLACE_THREADS, shared_bytes)


def production_kernels() -> list[Kernel]:
    """The routers of Mixtral, Qwen2-MoE, gpt-oss, DeepSeek-V3, Qwen3-Next, Phi-3.5-MoE and Kolibri 1."""
    routers = (
        Experts(8, 2, 64, renormalises=True),
        Experts(60, 4, 64, shared_size=64, shared_as="gated"),
        Experts(128, 4, 64, "softmax_of_chosen"),
        Experts(256, 8, 64, "sigmoid", True, 2.5, groups=8, top_groups=4, has_correction=True),
        Experts(512, 10, 64, renormalises=True),
        Experts(16, 2, 64, "sparse_mixer", jitter=0.01),
        Experts(384, 6, 64, "sigmoid_of_chosen", has_correction=True),
    )
    return [*map(route_kernel, routers), place_kernel(2), place_kernel(8)]
