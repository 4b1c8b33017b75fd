"""The weights of a layer's experts as one matrix: their rows stacked, each expert's from a multiple of ROWS on."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from .weight_forms import GroupedWeight, OutputScaledWeight, StoredWeight, Weight, each_tensor, joined, with_outputs

ROWS = 64  # so that experts have whole panels in the layout of the CPU kernels


def padded_outputs(outputs: int) -> int:
    """The rows of a stacked weight that belong to one expert with so many outputs."""
    return -(-outputs // ROWS) * ROWS


def stacked_experts(name: str, experts: Sequence[Weight]) -> Weight:
    """Stack the weights [outputs, inputs] of `experts`, padded with zeros. Raises ConfigError if their forms differ."""
    first, padded = experts[0], padded_outputs(experts[0].shape[0])
    if any(len(joined([first, other])) > 1 for other in experts[1:] if not isinstance(other, Tensor)):
        raise ConfigError(f"{name}: the experts of a layer must be quantized in one way; quantize all of them or none")
    if isinstance(first, GroupedWeight) and first.order is not None:
        raise ConfigError(f"{name} is quantized in activation order, which experts do not support; use desc_act=false")
    each = [with_outputs(weight, padded) for weight in experts]
    match first:
        case Tensor():
            return torch.cat([weight for weight in each if isinstance(weight, Tensor)])
        case StoredWeight():
            parts = [part for weight in each if isinstance(weight, StoredWeight) for part in weight.parts]
            return StoredWeight(tuple(parts), first.dtype)
        case _:
            return _stacked_codes(each)


def of_expert(weight: Weight, index: int, outputs: int) -> Weight:
    """The weight [outputs, inputs] of one expert of a stacked one."""
    start = index * padded_outputs(outputs)
    return each_tensor(weight, lambda tensor: tensor[start : start + outputs])


def _stacked_codes(each: Sequence[Weight]) -> Weight:
    match each[0]:
        case OutputScaledWeight() as first:
            same = [weight for weight in each if isinstance(weight, type(first))]
            codes, scales = torch.cat([one.codes for one in same]), torch.cat([one.scales for one in same])
            return type(first)(codes, scales)
        case GroupedWeight() as first:
            grouped = [weight for weight in each if isinstance(weight, GroupedWeight)]
            zeros = None if first.zeros is None else torch.cat([one.zeros for one in grouped if one.zeros is not None])
            codes, scales = torch.cat([one.codes for one in grouped]), torch.cat([one.scales for one in grouped])
            return GroupedWeight(codes, scales, zeros, first.bits)
        case other:
            raise AssertionError(f"experts are not stacked as {type(other).__name__}")
