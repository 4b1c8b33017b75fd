"""The Recurrences of our CPU kernels."""

from torch import Tensor

from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.library import Pool
from ...kernels.cpu.recurrent.causal_conv import causal_conv
from ...kv.state_rows import StateRows
from ...layers.recurrent.weights import CausalConv


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
