"""The Recurrences of our CPU kernels."""

import torch
from torch import Tensor

from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.library import Pool
from ...kernels.cpu.recurrent.causal_conv import causal_conv
from ...kernels.cpu.recurrent.factors import copy_rows, silu_gate, softplus_gate
from ...kernels.cpu.recurrent.mamba1 import mamba1_scan, norm_parts
from ...kernels.cpu.recurrent.scans import gated_delta, gated_norm, mamba2_scan, sigmoid_gate
from ...kv.state_rows import StateRows
from ...layers.recurrent.weights import CausalConv, GatedDelta, GatedNorm, Mamba1, Mamba2, PartNorms


class CpuRecurrences:
    def __init__(self, pool: Pool, buffers: Buffers):
        self._pool = pool
        self._buffers = buffers

    def causal_conv(
        self,
        rows: StateRows,
        states: Tensor,
        conv: CausalConv,
        x: Tensor,
        x_factors: Tensor | None = None,
        y_factors: Tensor | None = None,
    ) -> Tensor:
        out = self._buffers.take("convolved", len(x), x.shape[1], x.dtype)
        weights = conv.weight, conv.bias
        return causal_conv(self._pool, rows, states, *weights, x, out, x_factors, y_factors, activates=conv.activates)

    def mamba2(self, rows: StateRows, states: Tensor, weights: Mamba2, x: Tensor, dt: Tensor) -> Tensor:
        out = self._buffers.take("scanned", len(x), weights.heads * weights.head_dim, x.dtype)
        per_head = weights.a, weights.d, weights.dt_bias
        sizes = weights.head_dim, weights.groups, weights.state_size
        return mamba2_scan(self._pool, rows, states, x, dt, per_head, sizes, weights.dt_limits, out)

    def gated_delta(
        self, rows: StateRows, states: Tensor, weights: GatedDelta, x: Tensor, b: Tensor, alpha: Tensor
    ) -> Tensor:
        out = self._buffers.take("scanned", len(x), weights.heads * weights.value_dim, x.dtype)
        per_head, sizes = (weights.a, weights.dt_bias), (weights.key_heads, weights.key_dim, weights.value_dim)
        limits = weights.eps, weights.max_beta, weights.lower_bound
        return gated_delta(self._pool, rows, states, x, (b, alpha), per_head, sizes, *limits, out)

    def gated_norm(self, norm: GatedNorm, x: Tensor, gate: Tensor) -> Tensor:
        out = self._buffers.take("gated", len(x), x.shape[1], x.dtype)
        gating = {"gates_last": norm.gates_last, "sigmoid_gates": norm.sigmoid_gates}
        return gated_norm(self._pool, x, gate, norm.weight, norm.group_size, norm.eps, out, **gating)

    def silu_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return silu_gate(self._pool, x, gate, self._buffers.take("gated", len(x), x.shape[1], x.dtype))

    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        out = self._buffers.take("gated", len(x), x.shape[1], x.dtype)
        return sigmoid_gate(self._pool, x, gate, out)

    def softplus_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return softplus_gate(self._pool, x, gate, self._buffers.take("gated", len(x), x.shape[1], x.dtype))

    def copied(self, role: str, x: Tensor) -> Tensor:
        return copy_rows(self._pool, x, self._buffers.take(role, len(x), x.shape[1], x.dtype))

    def copy_of(self, role: str, tokens: int, columns: int, dtype: torch.dtype) -> Tensor:
        return self._buffers.take(role, tokens, columns, dtype)


class CpuSelectiveScan:
    def __init__(self, pool: Pool, buffers: Buffers):
        self._pool = pool
        self._buffers = buffers

    def normed_parts(self, norms: PartNorms, x: Tensor) -> Tensor:
        out = self._buffers.take("parts", len(x), x.shape[1], x.dtype)
        return norm_parts(self._pool, x, norms.weight, (norms.steps, norms.state_size), norms.eps, out)

    def scan(self, rows: StateRows, states: Tensor, weights: Mamba1, x: Tensor, dt: Tensor, b_and_c: Tensor) -> Tensor:
        out = self._buffers.take("scanned", len(x), x.shape[1], x.dtype)
        per_channel = weights.exponents, weights.d, weights.dt_bias
        return mamba1_scan(self._pool, rows, states, x, dt, b_and_c, per_channel, out)
