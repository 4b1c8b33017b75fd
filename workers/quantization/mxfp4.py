"""Matrices in MXFP4, in their own blocks (checkpoint/stacked_experts.py has the format).

by compressed-tensors:
weight_packed   [out, in / 2]    uint8, two codes
weight_scale    [out, in / 32]   uint8, exponents + 127
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..checkpoint.conversion import converted
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.stacked_experts import MXFP4_BIAS, MXFP4_BLOCK, StackedPart, check_exponents
from ..checkpoint.weight_forms import GroupedWeight, StoredWeight
from .words.pairs import codes_of_pairs, span_of

MAX_RANGE = 28  # binary exponents of the scales of one tensor, all of which are normal float16 in one unit


@dataclass(frozen=True, slots=True)
class Mxfp4Reader:
    """Reads such matrices as groups of codes; `floats` reads the others, and tensors whose scales differ too much.

    A scale of 2^-127, the least, is that of a block of zeros, and becomes 0.
    """

    checkpoint: Checkpoint
    floats: FloatReader
    _are_near: dict[str, bool] = field(default_factory=dict)  # by tensor, for all experts of a layer need one form

    def read(self, name: str, part: MatrixPart) -> GroupedWeight | StoredWeight:
        found = self.checkpoint.mxfp4_part(f"{name}.weight")
        if found is None or not self._scales_are_near(found):
            weight = self.floats.read(name, part)
            for values in weight.parts if found else ():
                converted(f"{name}.weight", values, weight.dtype)
            return weight
        blocks, stored = self.checkpoint.read_mxfp4(found, found.index, found.index + 1)
        codes, exponents = found.codes_of_mxfp4(blocks, stored)
        assert part.is_whole, "each rank has whole experts"
        return mxfp4_weight(codes.flatten(1), stored[0, slice(*found.rows)], exponents)

    def _scales_are_near(self, part: StackedPart) -> bool:
        if part.name not in self._are_near:
            (_, shape) = part.mxfp4_shapes()[1]
            scales = self.checkpoint.read(f"{part.name}_scales", shape, dtypes=("U8",))
            self._are_near[part.name] = are_near(scales)
        return self._are_near[part.name]


def read_compressed_mxfp4(
    checkpoint: Checkpoint, name: str, part: MatrixPart, dtype: torch.dtype
) -> GroupedWeight | StoredWeight:
    """A matrix by compressed-tensors; as floats if its scales differ too much."""
    codes = codes_of_pairs(checkpoint, f"{name}.weight_packed", part, MXFP4_BLOCK)
    shape, tensor = (part.shape[0], part.shape[1] // MXFP4_BLOCK), f"{name}.weight_scale"
    scales = checkpoint.read(tensor, shape, dtypes=("U8",))
    start, stop = span_of(part, MXFP4_BLOCK)
    stored = scales[start:stop] if part.dim == 0 else scales[:, start:stop]
    exponents = stored.int() - MXFP4_BIAS
    check_exponents(tensor, exponents)
    weight = mxfp4_weight(codes, stored, exponents)
    if are_near(scales):
        return weight
    return StoredWeight((converted(f"{name}.weight", weight.dequantized(), dtype),), dtype)


def are_near(scales: Tensor) -> bool:
    """Whether one unit holds these stored scales, uint8."""
    used = scales[scales > 0]
    return not len(used) or int(used.max()) - int(used.min()) <= MAX_RANGE


def mxfp4_weight(codes: Tensor, stored: Tensor, exponents: Tensor) -> GroupedWeight:
    """The matrix with `codes` [out, in] and scales [out, groups], both as `stored` and as their exponents."""
    scales = torch.ldexp(torch.ones(exponents.shape), exponents - 1)  # values are doubled
    scales[stored == 0] = 0.0
    return GroupedWeight(codes, scales, None, bits=4, is_e2m1=True)
