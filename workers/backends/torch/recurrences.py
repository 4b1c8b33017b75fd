"""The Recurrences of plain torch on any device: the reference, and the fallback without kernels.

Every token is computed alone, by operations whose shapes depend only on the model, so its bits depend on nothing else.
"""

import torch
from torch import Tensor

from ...kv.state_rows import StateRows
from ...layers.recurrent.weights import CausalConv


class TorchRecurrences:
    def causal_conv(
        self,
        rows: StateRows,
        states: Tensor,
        conv: CausalConv,
        x: Tensor,
        x_factors: Tensor | None = None,
        y_factors: Tensor | None = None,
    ) -> Tensor:
        inputs, out = x if x_factors is None else x * x_factors, torch.zeros_like(x)
        for source, target, tokens in rows.pieces():
            last = torch.zeros_like(states[target]) if source is None else states[source].clone()
            for token in range(tokens.start, tokens.stop):
                window = torch.cat([last, inputs[token].unsqueeze(0)])
                total = (window.float() * conv.weight).sum(0)
                if conv.bias is not None:
                    total = total + conv.bias
                activated = torch.nn.functional.silu(total) if conv.activates else total
                out[token] = activated if y_factors is None else activated * y_factors[token].float()
                last = window[1:]
            states[target] = last
        return out
