"""Reads the mixers of Mamba 2."""

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from ...checkpoint.conversion import converted
from ...geometry.recurrent.mamba2 import Mamba2Layer
from ...layers.recurrent.keeping import KeepingRecurrences
from ...layers.recurrent.recurrences import Recurrences
from ...layers.recurrent.weights import CausalConv, GatedNorm, Mamba2
from ...mixers.mamba2 import Mamba2Mixer
from ...mixers.norm_gate import Gate, NormGate
from ..matrix_rows import Rows, Span
from .feed_forward_reader import FeedForwardReader


class Mamba2Reader(FeedForwardReader):
    """Heads are divided among the ranks, each with its group's inputs and outputs of the state."""

    @cached_property
    def _recurrences(self) -> Recurrences:
        return KeepingRecurrences(self._backend.recurrences())

    def _mamba2(self, index: int, kind: Mamba2Layer) -> Mamba2Mixer:
        names, hidden, group = self._names.mamba2, self._geometry.hidden_size, self._group
        share, inner = kind.of_rank(group.size), kind.inner_size
        into, convolution = names.into.format(index), names.convolution.format(index)
        gates, *of_conv, steps = _spans(kind, group.rank, group.size)
        total = inner + kind.channels + kind.heads
        rows = [Rows(into, total, span) for span in joined_spans((gates, *of_conv, steps))]
        here = slice(*kind.heads_of(group.rank, group.size))
        d, dt_bias = (self._per_head(name.format(index), kind.heads)[here] for name in (names.d, names.dt_bias))
        rates = self._rates_of_heads(names.a_log.format(index), kind.heads)[here]
        return Mamba2Mixer(
            layer=index,
            sizes=share,
            into=self._column_parallel(rows, hidden, kind.has_bias),
            convolution=self._convolution(
                [Rows(convolution, kind.channels, (a - inner, b - inner)) for a, b in of_conv],
                kind.width,
                kind.has_conv_bias,
            ),
            scan=Mamba2(rates, d, dt_bias, kind.head_dim, share.groups, kind.state_size, kind.dt_limits),
            gate=self._gate(names.norm.format(index), kind),
            output=self._row_parallel(names.output.format(index), hidden, inner, kind.has_bias),
            recurrences=self._recurrences,
        )

    def _convolution(
        self, parts: list[Rows], width: int, has_bias: bool = False, *, activates: bool = True
    ) -> CausalConv:
        """Of the given channels of one or several tensors."""
        bias = self._bias(parts).float() if has_bias else None
        weight = self._tensor(parts[0].name, lambda: self._channels(parts, width))
        return CausalConv(weight.float(), bias, activates)

    def _channels(self, parts: list[Rows], width: int) -> Tensor:
        """The filters of this rank's channels, [width, channels] in the model's dtype."""
        read = self._checkpoint.read
        found = [read(f"{part.name}.weight", (part.total, 1, width), 0, *part.span) for part in parts]
        each = [
            converted(f"{part.name}.weight", one, self._geometry.dtype) for part, one in zip(parts, found, strict=True)
        ]
        held = torch.cat(each).to(self._device).squeeze(1).T.contiguous()
        self._loaded(held.nbytes)
        return held

    def _gate(self, name: str, kind: Mamba2Layer) -> Gate:
        """With a norm of this rank's elements, if these are whole groups; else of all."""
        if kind.gating == "alone":
            return self._recurrences.silu_gated
        weight, (first, last) = self._vector(name, kind.inner_size).float(), self._even_span(kind.inner_size)
        if (last - first) % kind.norm_size == 0:
            weight = weight[first:last].contiguous()
        norm = GatedNorm(weight, kind.norm_size, self._geometry.norm_eps, kind.gating == "after_norm")
        return NormGate(norm, self._recurrences, self._group)

    def _rates_of_heads(self, a_log: str, heads: int, shape: tuple[int, ...] = ()) -> Tensor:
        """-exp(A_log), which GGUF files have as A. `shape`: of A_log, if it is more than a vector."""
        if (name := a_log.removesuffix("_log")) in self._checkpoint.entries:
            return self._per_head(name, heads)
        read = partial(self._read_tensor, a_log, shape or (heads,), dtype=torch.float32)
        return -self._tensor(a_log, read).flatten().exp()

    def _per_head(self, name: str, heads: int) -> Tensor:
        """A vector of all heads in float32, not rounded to the model's dtype: decays are powers of it."""
        return self._tensor(name, lambda: self._read_tensor(name, (heads,), dtype=torch.float32))


def _spans(kind: Mamba2Layer, rank: int, tp_size: int) -> list[Span]:
    """The rows of the first projection that a rank holds: gates, x, b, c and steps."""
    heads, groups = kind.heads_of(rank, tp_size), kind.groups_of(rank, tp_size)
    inner, of_groups, spans, at = kind.inner_size, kind.groups * kind.state_size, list[Span](), 0
    parts = [(heads, kind.head_dim, inner)] * 2 + [(groups, kind.state_size, of_groups)] * 2 + [(heads, 1, kind.heads)]
    for (first, last), size, total in parts:
        spans.append((at + first * size, at + last * size))
        at += total
    return spans


def joined_spans(spans: Sequence[Span]) -> list[Span]:
    """The same rows, adjacent spans as one."""
    found = [spans[0]]
    for first, last in spans[1:]:
        if found[-1][1] == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found
