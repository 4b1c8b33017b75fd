"""Computes attention modules of the most common kind with four kernels; recognises them by running small copies."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...layers.linear import Linear
from ...layers.norm import RMSNorm
from ...layers.rotary import rotate
from .paged_attention import HOLDER
from .recognition import TOLERANCE, norm_kind

PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj")
NORMS = ("q_norm", "k_norm")
PARTIAL = ("partial_rotary_factor", "rotary_dim", "rotary_pct")  # fields by which a part of each head is rotated
FAILURES = (RuntimeError, TypeError, AttributeError, ValueError, KeyError, IndexError)
HIDDEN, HEADS = 6, 4  # of the copy, which has two KV heads
POSITIONS = (0, 5, 99_999, 3_000_000)  # reveal a dependence on positions other than the rotation


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """out(attention(rotate(norm(q)), rotate(norm(k)), v)), where norms may be absent."""

    layer_idx: int
    head_dim: int
    has_norms: bool
    options: dict[str, Any]  # arguments of the attention function other than its tensors


class AttentionModule(nn.Module):
    """Replaces a PlainAttention."""

    def __init__(self, plain: PlainAttention, qkv: Linear, norms: tuple[RMSNorm | None, ...], out: Linear, heads: Any):
        super().__init__()
        self.layer_idx = plain.layer_idx
        self.plain = plain
        self.heads = heads  # (heads of queries, heads of keys) on this rank
        self.norms = norms
        self.qkv, self.out = qkv, out

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any = None, attention_mask: Any = None, **_: Any
    ) -> tuple[Tensor, None]:
        projected = self.qkv(hidden_states[0].contiguous())
        mixed = getattr(self, HOLDER).projected(self, projected, *position_embeddings, attention_mask)
        return self.out(mixed.flatten(1)).clone().unsqueeze(0), None


def rotates_whole_heads(fields: Any) -> bool:
    """Whether no field of a config, at any depth, says that only a part of each head is rotated."""
    if not isinstance(fields, dict):
        return True
    named = (value for name, value in fields.items() if name in PARTIAL and value is not None)
    return all(value == 1.0 for value in named) and all(map(rotates_whole_heads, fields.values()))


def plain_attention(module: Any) -> PlainAttention | None:
    """What `module` computes; None if it is not a PlainAttention. Its weights need not be in memory yet."""
    children, head_dim = dict(module.named_children()), getattr(module, "head_dim", None)
    if children.keys() not in ({*PRODUCTS}, {*PRODUCTS, *NORMS}) or not isinstance(head_dim, int):
        return None
    if any(type(children[name]) is not nn.Linear for name in PRODUCTS) or list(module.parameters(recurse=False)):
        return None
    if not isinstance(getattr(module, "layer_idx", None), int) or head_dim % 2:
        return None
    norms = [children[name] for name in NORMS if name in children]
    kinds = [norm_kind(norm) for norm in norms]
    if any(kind is None or kind.is_centred for kind in kinds) or len({kind.eps for kind in kinds if kind}) > 1:
        return None
    model_copy, weights = _small_copy(module, children, head_dim)
    ours: list[Callable[[Tensor], Tensor]] = [_unchanged, _unchanged]
    for place, kind in enumerate(kinds):
        if kind is not None:
            ours[place] = kind.norm(model_copy._modules[NORMS[place]].weight, None)
    options = _agreed(model_copy, weights, head_dim, ours)
    return None if options is None else PlainAttention(module.layer_idx, head_dim, bool(norms), options)


def _small_copy(module: Any, children: dict[str, Any], head_dim: int) -> tuple[Any, list[nn.Linear]]:
    """A module with the same code and other, small weights, and its products."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(HIDDEN)
        sizes = ((HIDDEN, HEADS), (HIDDEN, 2), (HIDDEN, 2))
        weights = [nn.Linear(inputs, heads * head_dim, dtype=torch.float32) for inputs, heads in sizes]
        weights.append(nn.Linear(HEADS * head_dim, HIDDEN, dtype=torch.float32))
        parts: dict[str, Any] = dict(zip(PRODUCTS, weights, strict=True))
        for name in NORMS:
            if name in children:
                parts[name] = copy.deepcopy(children[name]).to_empty(device="cpu").float()
                parts[name].weight.data.copy_(torch.randn(parts[name].weight.shape))
    model_copy = copy.copy(module)
    model_copy.__dict__ = dict(module.__dict__)
    model_copy._modules = parts
    return model_copy, weights


def _agreed(
    model_copy: Any, weights: list[nn.Linear], head_dim: int, norms: list[Callable[[Tensor], Tensor]]
) -> dict[str, Any] | None:
    """The options that the copy passes to the attention function; None if its results differ from ours."""
    generator = torch.Generator().manual_seed(HEADS)
    x = torch.randn(1, len(POSITIONS), HIDDEN, generator=generator)
    angles = torch.rand(len(POSITIONS), head_dim // 2, generator=generator) * 6.0
    cosine, sine = angles.cos(), angles.sin()
    seen: list[Any] = []

    def note(_: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Any:
        seen.append((query, key, value, options))
        return query.transpose(1, 2), None

    model_copy.__dict__[HOLDER] = note
    doubled = (torch.cat([each, each], dim=-1).unsqueeze(0) for each in (cosine, sine))
    try:
        result = model_copy(
            hidden_states=x,
            position_embeddings=tuple(doubled),
            attention_mask=None,
            position_ids=torch.tensor([POSITIONS]),
        )
    except FAILURES:
        return None
    if len(seen) != 1 or not isinstance(result, tuple) or not isinstance(result[0], Tensor):
        return None
    parts = [weight(x[0]).view(len(POSITIONS), -1, head_dim) for weight in weights[:3]]
    angle = cosine.unsqueeze(1), sine.unsqueeze(1)
    rotated = [rotate(norm(part), *angle) for norm, part in zip(norms, parts, strict=False)]
    expected = [*rotated, parts[2]]
    found = [each[0].transpose(0, 1) for each in seen[0][:3]]
    out = weights[3](rotated[0].flatten(1))
    pairs = zip([*expected, out], [*found, result[0][0]], strict=True)
    is_equal = all(a.shape == b.shape and torch.allclose(a, b, rtol=TOLERANCE, atol=10 * TOLERANCE) for a, b in pairs)
    return dict(seen[0][3]) if is_equal else None


def _unchanged(x: Tensor) -> Tensor:
    return x
