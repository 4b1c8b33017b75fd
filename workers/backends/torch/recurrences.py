"""The Recurrences of plain torch on any device: the reference, and the fallback without kernels.

Every token is computed alone, by operations whose shapes depend only on the model, so its bits depend on nothing else.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad, silu, softplus

from ...geometry.recurrent.columns import LANES
from ...kv.state_rows import StateRows
from ...layers.norm import RMSNorm
from ...layers.recurrent.torch_copies import TorchCopies
from ...layers.recurrent.weights import CausalConv, GatedDelta, GatedNorm, Mamba1, Mamba2, PartNorms


class TorchRecurrences(TorchCopies):
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
            last = torch.zeros_like(states[0]) if source is None else states[source].clone()
            for token in range(tokens.start, tokens.stop):
                window = torch.cat([last, inputs[token].unsqueeze(0)])
                total = (window.float() * conv.weight).sum(0)
                if conv.bias is not None:
                    total = total + conv.bias
                activated = silu(total) if conv.activates else total
                out[token] = activated if y_factors is None else activated * y_factors[token].float()
                last = window[1:]
            if target is not None:
                states[target] = last
        return out

    def mamba2(self, rows: StateRows, states: Tensor, weights: Mamba2, x: Tensor, dt: Tensor) -> Tensor:
        inner, sharing = weights.heads * weights.head_dim, weights.heads // weights.groups
        out = x.new_zeros(len(x), inner)

        def step(state: Tensor, token: int) -> Tensor:
            wide = x[token].float()
            head, both = wide[:inner].view(weights.heads, -1), wide[inner:].view(2, weights.groups, 1, -1)
            b, c = both.expand(2, -1, sharing, -1).reshape(2, weights.heads, 1, -1)
            size = softplus(dt[token].float() + weights.dt_bias).clamp(*weights.dt_limits).view(-1, 1, 1)
            state = (size * weights.a.view(-1, 1, 1)).exp() * state + size * head.unsqueeze(2) * b
            out[token] = ((state * c).sum(2) + weights.d.unsqueeze(1) * head).flatten()
            return state

        _scan(rows, states, weights.head_dim, step)
        return out

    def gated_delta(
        self, rows: StateRows, states: Tensor, weights: GatedDelta, x: Tensor, b: Tensor, alpha: Tensor
    ) -> Tensor:
        of_keys, sharing = weights.key_heads * weights.key_dim, weights.heads // weights.key_heads
        out = x.new_zeros(len(x), weights.heads * weights.value_dim)

        def step(state: Tensor, token: int) -> Tensor:
            wide = x[token].float()
            both = wide[: 2 * of_keys].view(2, weights.key_heads, 1, -1)
            both = both * torch.rsqrt(both.square().sum(-1, keepdim=True) + weights.eps)
            query, key = both.expand(-1, -1, sharing, -1).reshape(2, weights.heads, 1, -1)
            value = wide[2 * of_keys :].view(weights.heads, -1)
            step, rates = (alpha[token].float() + weights.dt_bias).view(weights.heads, 1, -1), weights.a.view(-1, 1, 1)
            bound = weights.lower_bound
            decay = (bound * (step * -rates).sigmoid() if bound else softplus(step) * rates).exp()
            state = decay * state
            beta = b[token].float().sigmoid() * weights.max_beta
            change = (value - (state * key).sum(2)) * beta.unsqueeze(1)
            state = state + change.unsqueeze(2) * key
            out[token] = ((state * query).sum(2) * weights.key_dim**-0.5).flatten()
            return state

        _scan(rows, states, weights.value_dim, step)
        return out

    def gated_norm(self, norm: GatedNorm, x: Tensor, gate: Tensor) -> Tensor:
        wide, gates = x.float(), gate.float()
        sigmoid = 1.0 / (1.0 + (-gates).exp())  # torch's silu depends on a value's place in the tensor
        gates = sigmoid if norm.sigmoid_gates else gates / (1.0 + (-gates).exp())
        grouped = (wide if norm.gates_last else wide * gates).view(len(x), -1, norm.group_size)
        normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + norm.eps)
        scaled = normed.view(x.shape) * norm.weight
        return (scaled * gates if norm.gates_last else scaled).to(x.dtype)

    def silu_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        gates = gate.float()
        return (x.float() * (gates / (1.0 + (-gates).exp()))).to(x.dtype)

    def sigmoid_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        return (x.float() / (1.0 + (-gate.float()).exp())).to(x.dtype)

    def softplus_gated(self, x: Tensor, gate: Tensor) -> Tensor:
        gates = gate.double()  # in float, the logarithm of 1 + a small number would be 0
        return (x * (gates.clamp_min(0.0) + (1.0 + (-gates.abs()).exp()).log())).to(x.dtype)


class TorchSelectiveScan:
    def normed_parts(self, norms: PartNorms, x: Tensor) -> Tensor:
        if norms.weight is None:
            return x.clone()
        sizes = [norms.steps, norms.state_size, norms.state_size]
        parts = zip(torch.split(x, sizes, 1), torch.split(norms.weight, sizes), strict=True)
        return torch.cat([RMSNorm(weight, norms.eps)(part) for part, weight in parts], 1)

    def scan(self, rows: StateRows, states: Tensor, weights: Mamba1, x: Tensor, dt: Tensor, b_and_c: Tensor) -> Tensor:
        out = torch.zeros_like(x)

        def step(state: Tensor, token: int) -> Tensor:
            own, (b, c) = x[token].float(), b_and_c[token].float().chunk(2)
            size = softplus(dt[token].float() + weights.dt_bias).unsqueeze(1)
            state = (size * weights.a).exp() * state + size * own.unsqueeze(1) * b
            out[token] = (state * c).sum(-1)[0] + weights.d * own
            return state

        _scan(rows, states, weights.channels, step)
        return out


def _scan(rows: StateRows, states: Tensor, outputs: int, step: Callable[[Tensor, int], Tensor]) -> None:
    """Let `step` change the state, [heads, outputs, depth], for each token."""
    heads, columns, depth, _ = states.shape[1:]
    for source, target, tokens in rows.pieces():
        state = states.new_zeros(heads, outputs, depth)
        if source is not None:
            # Heads of one column would stay transposed, and torch's order of a sum depends on the strides.
            state = states[source].transpose(2, 3).reshape(heads, -1, depth)[:, :outputs].contiguous()
        for token in range(tokens.start, tokens.stop):
            state = step(state, token)
        if target is None:
            continue
        padded = pad(state, (0, 0, 0, columns * LANES - outputs))
        states[target] = padded.view(heads, columns, LANES, depth).transpose(2, 3)
