"""Experts stacked: in tensors of a checkpoint, and as one matrix, each expert's rows from a multiple of ROWS on.

MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 inputs with 4-bit floats (e2m1), two in a byte, the first in the low
half, and one power of two, whose exponent is stored plus 127.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from .blocks.block_weight import BlockWeight
from .blocks.dequantize import E2M1_TWICE
from .weight_forms import (
    Fp8BlockWeight,
    GroupedWeight,
    OutputScaledWeight,
    StoredWeight,
    Weight,
    each_tensor,
    form_of,
    stacked_units,
    with_outputs,
)

ROWS = 64  # so that experts have whole panels in the layout of the CPU kernels
MXFP4_BLOCK, MXFP4_BIAS, MAX_EXPONENT = 32, 127, 124  # above that, 6 * 2^exponent is not finite in bfloat16


@dataclass(frozen=True, slots=True)
class StackedPart:
    """Some rows of one matrix, or elements of one vector, of a tensor with one for each expert."""

    name: str
    shape: tuple[int, ...]  # of the tensor: experts first
    index: int  # of the expert
    rows: tuple[int, int | None, int]  # start, stop, step
    is_transposed: bool  # the tensor's matrices are [in, out]; those of MXFP4 never are
    is_flat: bool = False  # the tensor has two dimensions, the rows of all experts in turn

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return (self.shape[0] * self.shape[1], *self.shape[2:]) if self.is_flat else self.shape

    @property
    def span(self) -> tuple[int, int]:
        """Where the expert is in the tensor's first dimension."""
        each = self.shape[1] if self.is_flat else 1
        return self.index * each, (self.index + 1) * each

    def of(self, stored: Tensor) -> Tensor:
        """The part of `stored`, the tensor's `span`."""
        one = stored if self.is_flat else stored[0]
        return (one.t() if self.is_transposed else one)[slice(*self.rows)]

    def mxfp4_shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The endings and shapes of the two tensors of this one in MXFP4."""
        experts, outputs, inputs = self.shape[0], *(self.shape[:0:-1] if self.is_transposed else self.shape[1:])
        blocks = experts, outputs, inputs // MXFP4_BLOCK
        return ("blocks", (*blocks, MXFP4_BLOCK // 2)), ("scales", blocks)

    def of_mxfp4(self, blocks: Tensor, scales: Tensor) -> Tensor:
        """The part as bfloat16, exactly; `blocks` and `scales` are slices of length 1. Raises ConfigError."""
        codes, exponents = self.codes_of_mxfp4(blocks, scales)
        values = torch.tensor(E2M1_TWICE)[codes.int()]
        return torch.ldexp(values, exponents.unsqueeze(2) - 1).flatten(1).bfloat16()

    def codes_of_mxfp4(self, blocks: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """The codes [outputs, groups, MXFP4_BLOCK] uint8 and exponents [outputs, groups] of the same slices."""
        rows = slice(*self.rows)
        pairs, exponents = blocks[0, rows], scales[0, rows].int() - MXFP4_BIAS
        check_exponents(f"{self.name}_scales", exponents)
        return torch.stack([pairs & 15, pairs >> 4], dim=3).flatten(2), exponents


def check_exponents(tensor: str, exponents: Tensor) -> None:
    """Raises ConfigError if a scale of MXFP4 with these exponents is not finite."""
    if exponents.numel() and int(exponents.max()) > MAX_EXPONENT:
        raise ConfigError(f"tensor {tensor} holds a scale that is not finite; download the model again")


def padded_outputs(outputs: int) -> int:
    """The rows of a stacked weight that belong to one expert with so many outputs."""
    return -(-outputs // ROWS) * ROWS


def stacked_experts(name: str, experts: Sequence[Weight]) -> Weight:
    """Stack the weights [outputs, inputs] of `experts`, padded with zeros. Raises ConfigError if their forms differ."""
    first, padded = experts[0], padded_outputs(experts[0].shape[0])
    if len({_form(weight) for weight in experts}) > 1:
        forms = ", ".join(sorted({form_of(weight) for weight in experts}))
        raise ConfigError(
            f"{name}: the experts of a layer must be quantized in one way, gate and up alike, but these are {forms}; "
            "use a checkpoint in which they are alike, or with a GGUF file --quantization int8"
        )
    if isinstance(first, GroupedWeight) and first.order is not None:
        raise ConfigError(f"{name} is quantized in activation order, which experts do not support; use desc_act=false")
    each = [with_outputs(weight, padded) for weight in experts]
    match first:
        case BlockWeight():
            blocks = [weight for weight in each if isinstance(weight, BlockWeight)]
            return replace(first, parts=tuple(part for weight in blocks for part in weight.parts))
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


def _form(weight: Weight) -> tuple[object, ...]:
    """What must be equal of weights that are stacked."""
    match weight:
        case BlockWeight():
            return BlockWeight, weight.format, weight.inputs, weight.skipped
        case StoredWeight():
            return StoredWeight, weight.dtype
        case GroupedWeight():
            return GroupedWeight, *weight.layout, weight.zeros is None
        case Fp8BlockWeight():
            return Fp8BlockWeight, weight.scales.shape[1]
        case _:
            return (type(weight),)


def _stacked_codes(each: Sequence[Weight]) -> Weight:
    match each[0]:
        case OutputScaledWeight() as first:
            same = [weight for weight in each if isinstance(weight, type(first))]
            codes, scales = torch.cat([one.codes for one in same]), torch.cat([one.scales for one in same])
            return type(first)(codes, scales)
        case Fp8BlockWeight() as first:
            blocks = [weight for weight in each if isinstance(weight, Fp8BlockWeight)]
            codes, scales = torch.cat([one.codes for one in blocks]), torch.cat([one.scales for one in blocks])
            return Fp8BlockWeight(codes, scales, first.form)
        case GroupedWeight() as first:
            grouped = [weight for weight in each if isinstance(weight, GroupedWeight)]
            zeros = None if first.zeros is None else torch.cat([one.zeros for one in grouped if one.zeros is not None])
            codes, scales = torch.cat([one.codes for one in grouped]), torch.cat([one.scales for one in grouped])
            return replace(first, codes=codes, scales=scales, zeros=zeros, units=stacked_units(grouped))
        case other:
            raise AssertionError(f"experts are not stacked as {type(other).__name__}")
