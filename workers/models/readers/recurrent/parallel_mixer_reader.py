"""Reads layers in which attention and a recurrence run in parallel: the factors of their projections."""

from dataclasses import replace

import torch
from torch import Tensor

from ....geometry.recurrent.multipliers import PartMultipliers
from ....layers.ops import Ops
from ....mixers.attention import Attention
from ....mixers.mixer import Mixer
from ....mixers.parallel_mixer import ParallelMixer
from ....mixers.recurrent.mamba2 import Mamba2Mixer
from ...projected import ScaledLinear
from ..layer_reader import LayerReader


def parallel_mixer(reader: LayerReader, attention: Attention, recurrence: Mixer, ops: Ops) -> ParallelMixer:
    """The sum of both; what projections return is multiplied by the factors of a model that has them."""
    parts = reader.geometry.multipliers.parts or PartMultipliers()
    assert isinstance(recurrence, Mamba2Mixer), "only Mamba 2 runs in parallel with attention"
    factors = _factors_of_columns(parts.recurrence_inputs, recurrence).to(reader.device)
    return ParallelMixer(
        attention=attention,
        attention_factor=parts.attention_output,
        recurrence=replace(recurrence, into=ScaledLinear(recurrence.into, ops, factors)),
        recurrence_factors=torch.full((reader.geometry.hidden_size,), parts.ssm_out_multiplier, device=reader.device),
        ops=ops,
    )


def _factors_of_columns(factors: tuple[float, ...], recurrence: Mamba2Mixer) -> Tensor:
    """The factor of each output of the first projection: gates, x, b, c and steps of one rank."""
    sizes = recurrence.sizes
    of_groups = sizes.groups * sizes.state_size
    counts = torch.tensor([sizes.inner_size, sizes.inner_size, of_groups, of_groups, sizes.heads])
    return torch.tensor(factors).repeat_interleave(counts)
