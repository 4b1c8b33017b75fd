"""Recurrences that keep the inputs of drafts, so that states can advance by the accepted drafts after sampling."""

import torch
from torch import Tensor

from ...kv.state_rows import StateRows
from .recurrences import Recurrences, SelectiveScan
from .weights import CausalConv, GatedDelta, GatedNorm, Mamba1, Mamba2, PartNorms


class KeepingRecurrences:
    """The Recurrences of a backend; operations on states copy their inputs if the step has drafts."""

    def __init__(self, inner: Recurrences):
        self._inner = inner

    def causal_conv(
        self,
        rows: StateRows,
        states: Tensor,
        conv: CausalConv,
        x: Tensor,
        x_factors: Tensor | None = None,
        y_factors: Tensor | None = None,
    ) -> Tensor:
        if rows.drafts is not None:
            inputs = (x,) if x_factors is None else (x, x_factors)
            rows.drafts.keep(self._inner.causal_conv, self._inner, rows.group, states, conv, inputs)
        return self._inner.causal_conv(rows, states, conv, x, x_factors, y_factors)

    def mamba2(self, rows: StateRows, states: Tensor, weights: Mamba2, x: Tensor, dt: Tensor) -> Tensor:
        if rows.drafts is not None:
            rows.drafts.keep(self._inner.mamba2, self._inner, rows.group, states, weights, (x, dt))
        return self._inner.mamba2(rows, states, weights, x, dt)

    def gated_delta(
        self, rows: StateRows, states: Tensor, weights: GatedDelta, x: Tensor, b: Tensor, alpha: Tensor
    ) -> Tensor:
        if rows.drafts is not None:
            rows.drafts.keep(self._inner.gated_delta, self._inner, rows.group, states, weights, (x, b, alpha))
        return self._inner.gated_delta(rows, states, weights, x, b, alpha)

    def gated_norm(self, norm: GatedNorm, x: Tensor, gate: Tensor) -> Tensor:
        return self._inner.gated_norm(norm, x, gate)

    def silu_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return self._inner.silu_gated(x, gate)

    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return self._inner.sigmoid_gated(x, gate)

    def softplus_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return self._inner.softplus_gated(x, gate)

    def copied(self, role: str, x: Tensor) -> Tensor:
        return self._inner.copied(role, x)

    def copy_of(self, role: str, tokens: int, columns: int, dtype: torch.dtype) -> Tensor:
        return self._inner.copy_of(role, tokens, columns, dtype)


class KeepingSelectiveScan:
    """Likewise the operations of Mamba 1; `recurrences` copies."""

    def __init__(self, inner: SelectiveScan, recurrences: Recurrences):
        self._inner = inner
        self._copies = recurrences

    def normed_parts(self, norms: PartNorms, x: Tensor) -> Tensor:
        return self._inner.normed_parts(norms, x)

    def scan(self, rows: StateRows, states: Tensor, weights: Mamba1, x: Tensor, dt: Tensor, b_and_c: Tensor) -> Tensor:
        if rows.drafts is not None:
            rows.drafts.keep(self._inner.scan, self._copies, rows.group, states, weights, (x, dt, b_and_c))
        return self._inner.scan(rows, states, weights, x, dt, b_and_c)
