"""Reads layers in which attention and a recurrence run in parallel, and the factors of their projections."""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from ...geometry.recurrent.multipliers import PartMultipliers
from ...layers.feed_forward import DenseFeedForward, FeedForward
from ...layers.ops import Ops
from ...mixers.attention import Attention
from ...mixers.mamba2 import Mamba2Mixer
from ...mixers.mixer import Mixer
from ...mixers.parallel_mixer import ParallelMixer
from ..projected import ScaledLinear
from .recurrent_reader import RecurrentReader


class ParallelMixerReader(RecurrentReader):
    """Multiplies what projections return by the factors of a model that has them (PartMultipliers)."""

    def _parallel_mixer(self, attention: Attention, recurrence: Mixer, ops: Ops) -> Mixer:
        parts, sizes = self._parts, self._geometry.hidden_size
        assert isinstance(recurrence, Mamba2Mixer), "only Mamba 2 runs in parallel with attention"
        factors = self._columns(parts.recurrence_inputs, recurrence)
        return ParallelMixer(
            attention=attention,
            attention_factor=parts.attention_output,
            recurrence=replace(recurrence, into=ScaledLinear(recurrence.into, ops, factors)),
            recurrence_factors=torch.full((sizes,), parts.ssm_out_multiplier, device=self._device),
            ops=ops,
        )

    def _columns(self, factors: tuple[float, ...], recurrence: Mamba2Mixer) -> Tensor:
        """The factor of each output of the first projection: gates, x, b, c and steps of one rank."""
        sizes = recurrence.sizes
        of_groups = sizes.groups * sizes.state_size
        counts = torch.tensor([sizes.inner_size, sizes.inner_size, of_groups, of_groups, sizes.heads])
        return torch.tensor(factors).repeat_interleave(counts).to(self._device)

    def _feed_forward(self, index: int, ops: Ops) -> FeedForward | None:
        found = super()._feed_forward(index, ops)
        if self._geometry.multipliers.parts is None:
            return found
        assert isinstance(found, DenseFeedForward), "only dense feed-forwards have multipliers"
        return replace(found, gate_up=ScaledLinear(found.gate_up, ops, self._gate_up_factors))

    @cached_property
    def _gate_up_factors(self) -> Tensor:
        """That of the result of `down`, which is linear in `up`, is applied to `up`."""
        share = self._geometry.intermediate_size // self._group.size
        return torch.tensor(self._parts.mlp_multipliers).repeat_interleave(share).to(self._device)

    @property
    def _parts(self) -> PartMultipliers:
        return self._geometry.multipliers.parts or PartMultipliers()
