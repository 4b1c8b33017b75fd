"""Experts in MXFP4, in their own blocks (checkpoint/stacked_experts.py has the format)."""

from dataclasses import dataclass, field

import torch

from ..checkpoint.conversion import converted
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.stacked_experts import StackedPart
from ..checkpoint.weight_forms import GroupedWeight, StoredWeight

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
        scales = torch.ldexp(torch.ones(exponents.shape), exponents - 1)  # values are doubled
        scales[stored[0, slice(*found.rows)] == 0] = 0.0
        assert part.is_whole, "each rank has whole experts"
        return GroupedWeight(codes.flatten(1), scales, None, bits=4, is_e2m1=True)

    def _scales_are_near(self, part: StackedPart) -> bool:
        if part.name not in self._are_near:
            (_, shape) = part.mxfp4_shapes()[1]
            scales = self.checkpoint.read(f"{part.name}_scales", shape, dtypes=("U8",))
            used = scales[scales > 0]
            self._are_near[part.name] = not len(used) or int(used.max()) - int(used.min()) <= MAX_RANGE
        return self._are_near[part.name]
