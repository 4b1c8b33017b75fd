"""The Recurrences of our CUDA kernels: a fixed sequence of launches, so that a graph holds it for any tokens."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...geometry.geometry import Geometry
from ...geometry.recurrent.gated_delta import GatedDeltaLayer
from ...geometry.recurrent.lightning import LightningLayer
from ...geometry.recurrent.mamba1 import Mamba1Layer
from ...geometry.recurrent.mamba2 import Mamba2Layer
from ...geometry.recurrent.recurrent import Recurrent
from ...geometry.recurrent.short_convolution import ShortConvolution
from ...kernels.cuda.kernel import Kernel, Launcher
from ...kernels.cuda.recurrent.causal_conv import WIDTHS, causal_conv, causal_conv_kernel
from ...kernels.cuda.recurrent.gates import gated_norm, gated_norm_kernel, sigmoid_gate, sigmoid_gate_kernel
from ...kernels.cuda.recurrent.mamba1 import mamba1_kernel, mamba1_scan, norm_parts, norm_parts_kernel
from ...kernels.cuda.recurrent.scans import gated_delta, gated_delta_kernel, mamba2_kernel, mamba2_scan
from ...kv.state_rows import StateRows
from ...layers.recurrent.torch_copies import TorchCopies
from ...layers.recurrent.weights import CausalConv, GatedDelta, GatedNorm, Mamba1, Mamba2, PartNorms
from .products.fixed_rows import empty_rows


class CudaRecurrences(TorchCopies):
    """Rows that pad a graph's batch have no state: they read and write nothing, and their results are arbitrary."""

    def __init__(self, launcher: Launcher):
        super().__init__()
        self._launcher = launcher

    def causal_conv(
        self,
        rows: StateRows,
        states: Tensor,
        conv: CausalConv,
        x: Tensor,
        x_factors: Tensor | None = None,
        y_factors: Tensor | None = None,
    ) -> Tensor:
        out = empty_rows(x, x.shape[1])
        tensors = conv.weight, conv.bias, x, out, x_factors, y_factors
        return causal_conv(self._launcher, rows, states, *tensors, activates=conv.activates)

    def mamba2(self, rows: StateRows, states: Tensor, weights: Mamba2, x: Tensor, dt: Tensor) -> Tensor:
        out = empty_rows(x, weights.heads * weights.head_dim)
        per_head = weights.a, weights.d, weights.dt_bias
        sizes = weights.head_dim, weights.groups, weights.state_size
        return mamba2_scan(self._launcher, rows, states, x, dt, per_head, sizes, weights.dt_limits, out)

    def gated_delta(
        self, rows: StateRows, states: Tensor, weights: GatedDelta, x: Tensor, b: Tensor, alpha: Tensor
    ) -> Tensor:
        out = empty_rows(x, weights.heads * weights.value_dim)
        per_head, sizes = (weights.a, weights.dt_bias), (weights.key_heads, weights.key_dim, weights.value_dim)
        eps, max_beta = weights.eps, weights.max_beta
        return gated_delta(self._launcher, rows, states, x, (b, alpha), per_head, sizes, eps, max_beta, out)

    def gated_norm(self, norm: GatedNorm, x: Tensor, gate: Tensor) -> Tensor:
        out, last = empty_rows(x, x.shape[1]), norm.gates_last
        return gated_norm(self._launcher, x, gate, norm.weight, norm.group_size, norm.eps, out, gates_last=last)

    def silu_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return sigmoid_gate(self._launcher, x, gate, empty_rows(x, x.shape[1]), by="silu")

    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return sigmoid_gate(self._launcher, x, gate, empty_rows(x, x.shape[1]))

    def softplus_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return sigmoid_gate(self._launcher, x, gate, empty_rows(x, x.shape[1]), by="softplus")


class CudaSelectiveScan:
    """Rows that pad a batch are as in CudaRecurrences."""

    def __init__(self, launcher: Launcher):
        self._launcher = launcher

    def normed_parts(self, norms: PartNorms, x: Tensor) -> Tensor:
        if norms.weight is None:
            return x  # a tensor of its own, as every product here
        sizes, out = (norms.steps, norms.state_size), empty_rows(x, x.shape[1])
        return norm_parts(self._launcher, x, norms.weight, sizes, norms.eps, out)

    def scan(self, rows: StateRows, states: Tensor, weights: Mamba1, x: Tensor, dt: Tensor, b_and_c: Tensor) -> Tensor:
        per_channel = weights.exponents, weights.d, weights.dt_bias
        return mamba1_scan(self._launcher, rows, states, x, dt, b_and_c, per_channel, empty_rows(x, x.shape[1]))


def recurrent_kernels(geometry: Geometry) -> list[Kernel]:
    """The kernels that the recurrent layers and the gates of attention launch on any number of ranks."""
    kinds = list(filter(None, dict.fromkeys(geometry.recurrent)))
    gates = [sigmoid_gate_kernel(geometry.dtype, geometry.attention_gate)] if geometry.attention_gate else []
    return [*(kernel for kind in kinds for kernel in _kernels_of(kind, geometry.dtype)), *gates]


def check_recurrent(geometry: Geometry) -> None:
    """Raises ConfigError naming a size without a kernel. Others are checked when config.json is read."""
    for kind in filter(None, dict.fromkeys(geometry.recurrent)):
        if isinstance(kind, LightningLayer):
            raise ConfigError("lightning attention has no CUDA kernels; use --device cpu")
        assert isinstance(kind, ShortConvolution | Mamba1Layer | Mamba2Layer | GatedDeltaLayer), kind
        if isinstance(kind, GatedDeltaLayer) and kind.has_decays_of_elements:
            raise ConfigError("Kimi delta attention has no CUDA kernels; use --device cpu")
        if kind.width not in WIDTHS:
            raise ConfigError(
                f"config.json: no CUDA kernel supports a convolution of width {kind.width}; it must be {WIDTHS[0]} to "
                f"{WIDTHS[-1]}, or use --device cpu"
            )


def _kernels_of(kind: Recurrent, dtype: torch.dtype) -> Iterator[Kernel]:
    match kind:
        case ShortConvolution():
            yield causal_conv_kernel(dtype, kind.width, activates=False)
        case Mamba1Layer():
            yield causal_conv_kernel(dtype, kind.width, activates=True)
            yield mamba1_kernel(dtype, kind.state_size)
            yield sigmoid_gate_kernel(dtype, by="silu")
            if kind.part_norms != "none":
                yield norm_parts_kernel(dtype)
        case Mamba2Layer():
            yield causal_conv_kernel(dtype, kind.width, activates=True)
            yield mamba2_kernel(dtype, kind.head_dim, kind.state_size)
            if kind.gating == "alone":
                yield sigmoid_gate_kernel(dtype, by="silu")
            else:
                yield gated_norm_kernel(dtype, kind.norm_size, gates_last=kind.gating == "after_norm")
        case GatedDeltaLayer():
            yield causal_conv_kernel(dtype, kind.width, activates=True)
            yield gated_delta_kernel(dtype, kind.value_dim, kind.key_dim)
            yield gated_norm_kernel(dtype, kind.value_dim, gates_last=True)
        case _:
            raise AssertionError(f"a kind without kernels: {kind}")
