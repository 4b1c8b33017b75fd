"""The activation of a feed-forward, with or without a gate, and the tanh that caps scores and logits."""

import torch
from torch import Tensor

from ..geometry.model_options import Activation

SQRT_HALF, GELU_SLOPE = 0.70710678, 0.79788456  # GELU_SLOPE: sqrt(2 / pi)
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: error below 1.5e-7
ERF_P, ERF = 0.3275911, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)

EXP_SERIES = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2)  # of (exp(x) - 1 - x) / (x * x)


def activated(x: Tensor, activation: Activation) -> Tensor:
    """Activate [tokens, n], or if gated [tokens, 2 * n] (gate, then up), in float32; rounded once to [tokens, n].

    The functions are computed with exp, because torch's silu, sigmoid, erf and tanh use other formulas for the elements
    at the end of a thread's share, so that a row's bits would depend on its position.
    """
    gate, up = x.float().chunk(2, dim=-1) if activation.is_gated else (x.float(), 1.0)
    match activation.kind:
        case "silu":
            result = (gate * up).div_((-gate).exp_().add_(1.0))
        case "gelu_tanh":  # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y))
            slope = (gate + 0.044715 * gate * gate * gate).mul_(-2.0 * GELU_SLOPE)
            result = (gate * up).div_(slope.exp_().add_(1.0))
        case "gelu":
            result = (gate * up).mul_(_normal_distribution(gate))
        case "relu":
            result = gate.clamp_min(0.0).mul_(up)
        case "relu2":
            result = gate.clamp_min(0.0).square_().mul_(up)
        case "clamped":
            gate, up = gate.clamp_max(activation.limit), torch.as_tensor(up).clamp(-activation.limit, activation.limit)
            result = (gate * (up + 1.0)).div_((-activation.slope * gate).exp_().add_(1.0))
        case "xielu":
            result = _xielu(gate, *activation.constants)
    return result.to(x.dtype)


def capped(x: Tensor, cap: float) -> Tensor:
    """Replace `x` float32 by cap * tanh(x / cap) in place; computed with exp for the same reason as activated()."""
    shrunk = x.abs().mul_(-2.0 / cap).exp_()
    magnitude = (1.0 - shrunk).div_(shrunk.add_(1.0)).mul_(cap)
    return x.copy_(torch.copysign(magnitude, x))


def _xielu(x: Tensor, alpha_p: float, alpha_n: float) -> Tensor:
    """Near 0 exp(x) - 1 - x is computed by a series, as the difference cancels."""
    below = x.clamp_max(0.0)
    series = torch.full_like(x, EXP_SERIES[0])
    for coefficient in EXP_SERIES[1:]:
        series = series.mul_(below).add_(coefficient)
    beyond = torch.where(below > -0.25, series.mul_(below).mul_(below), below.exp().sub_(1.0).sub_(below))
    return torch.where(x > 0, alpha_p * x * x, beyond.mul_(alpha_n)).add_(x, alpha=0.5)


def _normal_distribution(x: Tensor) -> Tensor:
    """The cumulative distribution function of the standard normal distribution, elementwise."""
    z = x.abs().mul_(SQRT_HALF)
    t = 1.0 / (1.0 + ERF_P * z)
    series = torch.full_like(t, ERF[0])
    for coefficient in ERF[1:]:
        series = series.mul_(t).add_(coefficient)
    beyond = series.mul_(t).mul_(z.mul_(z).neg_().exp_()).mul_(0.5)
    return torch.where(x < 0, beyond, 1.0 - beyond)
