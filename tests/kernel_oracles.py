"""The expected results of kernels, in float64: for csrc/cpu, and for csrc/cuda in the emulator and on a device."""

import torch
from torch import Tensor

from paged_serve.workers.geometry.layer_options import AttentionOptions

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": torch.nn.functional.gelu,
    "relu": torch.nn.functional.relu,
    "relu2": lambda x: torch.nn.functional.relu(x).square(),
    "xielu": lambda x: xielu(x, *XIELU),
}
XIELU = (0.7, 1.3)  # alpha_p and alpha_n


def xielu(x: Tensor, alpha_p: float, alpha_n: float) -> Tensor:
    """Of arXiv 2411.13010, with beta = 0.5."""
    return torch.where(x > 0, alpha_p * x * x, alpha_n * (torch.expm1(x.clamp(max=0)) - x)) + x / 2


def gated(gate_up: Tensor, activation: str = "silu") -> Tensor:
    """[rows, 2 * n], gate then up -> [rows, n]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate) * up


def activated(x: Tensor, activation: str) -> Tensor:
    """[rows, n] -> the same shape."""
    return ACTIVATIONS[activation](x.double())


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` [..., size] to unit mean square, times `weight` [size]."""
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def centred(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """`x` [..., size] to mean 0 and variance 1, times `weight`, plus `bias` [size], if there is one."""
    wide = x.double()
    scaled = normalised(wide - wide.mean(-1, keepdim=True), weight, eps)
    return scaled if bias is None else scaled + bias.double()


def rotated(heads: Tensor, angles: Tensor) -> Tensor:
    """`heads` [tokens, n, head_dim], element i with i + head_dim / 2; `angles` [tokens, head_dim]: cosines, sines."""
    low, high = heads.double().chunk(2, -1)
    cosine, sine = angles.double().unsqueeze(1).chunk(2, -1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)


def attended(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """One request's last tokens, `query` [new, heads, head_dim], over `keys`, `values` [length, kv_heads, head_dim]."""
    new, length, group = len(query), len(keys), query.shape[1] // keys.shape[1]
    wide_keys, wide_values = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.double(), wide_keys) * options.scale
    if options.cap:
        scores = options.cap * torch.tanh(scores / options.cap)
    distance = torch.arange(length) - torch.arange(length - new, length).unsqueeze(1)
    if options.slopes is not None:
        scores = scores + options.slopes.double().view(-1, 1, 1) * distance
    if options.bias is not None:
        reach = options.bias.shape[1] // 2
        scores = scores + options.bias.double()[:, distance.clamp(-reach, reach) + reach]
    hidden = torch.zeros_like(distance, dtype=torch.bool) if options.is_bidirectional else distance > 0
    if options.window:
        hidden |= distance <= -options.window
    if options.attention_chunk:
        numbers = torch.arange(length) // options.attention_chunk
        hidden |= numbers != numbers[length - new :].unsqueeze(1)
    scores = scores.masked_fill(hidden, -torch.inf)
    if options.sinks is not None:
        scores = torch.cat([scores, options.sinks.double().view(-1, 1, 1).expand(-1, new, 1)], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], wide_values)


def bias_of(heads: int, reach: int) -> Tensor:
    """[heads, 2 * reach + 1], another one for each head and distance."""
    return torch.randn(heads, 2 * reach + 1, generator=torch.Generator().manual_seed(reach)) * 2


def sinks_of(heads: int) -> Tensor:
    """[heads], below and above a token's highest score."""
    return torch.linspace(-2, 6, heads)
