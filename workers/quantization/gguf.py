"""The matrices of GGUF files: in their own blocks if there are products with them, otherwise dequantized."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paged_serve.protocol.gguf.block_formats import FLOAT_FORMATS

from ..checkpoint.blocks.block_weight import GROUP_INPUTS, PRODUCT_FORMATS, BlockWeight
from ..checkpoint.blocks.dequantize import codes_of_mxfp4, codes_of_nvfp4, scales_of_mxfp4, scales_of_nvfp4
from ..checkpoint.gguf.gguf_checkpoint import NVFP4, GgufCheckpoint
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.stacked_experts import MAX_EXPONENT, MXFP4_BIAS
from ..checkpoint.weight_forms import GroupedWeight, StoredWeight
from .mxfp4 import MAX_RANGE
from .words.nvfp4 import GROUP, nvfp4_weight

MXFP4, GROUP_SIZE = "MXFP4", 32  # inputs of a block
CODES_WITHOUT_SIGN = 0x77  # the bits of a pair of codes of MXFP4 that are 0 in zeros


@dataclass(frozen=True, slots=True)
class GgufTableReader:
    """Reads tables of GGUF files."""

    checkpoint: GgufCheckpoint
    floats: FloatReader

    def read(self, name: str, part: MatrixPart) -> BlockWeight | StoredWeight:
        found = self.checkpoint.format_of(f"{name}.weight")
        inputs = range(part.shape[1])[part.inputs]
        if found in PRODUCT_FORMATS and inputs.start % GROUP_INPUTS == 0 and len(inputs) % GROUP_INPUTS == 0:
            blocks, skipped = self.checkpoint.blocks(f"{name}.weight", part.shape, part.dim, part.start, part.stop)
            return BlockWeight(found, (blocks,), len(inputs), skipped, self.floats.dtype)
        weight = self.floats.read(name, part)
        return weight if found in FLOAT_FORMATS else replace(weight, blocks=found, is_cut=found in PRODUCT_FORMATS)


@dataclass(frozen=True, slots=True)
class GgufReader:
    """Reads projections of GGUF files.

    Experts in MXFP4 are the codes and scales of mxfp4.py, unless the scales of a layer's experts differ too much;
    matrices in NVFP4 those of words/nvfp4.py, unless a rank would have a part of a group.
    """

    checkpoint: GgufCheckpoint
    floats: FloatReader
    _has_near_scales: dict[str, bool] = field(default_factory=dict)  # by layer, for all its experts need one form

    def read(self, name: str, part: MatrixPart) -> GroupedWeight | BlockWeight | StoredWeight:
        block_format = self.checkpoint.format_of(f"{name}.weight")
        if block_format == MXFP4 and ".experts." in name and self._are_scales_near(name):
            return self._mxfp4(name, part)
        if block_format == NVFP4 and part.dim == 1 and (part.start % GROUP or part.stop % GROUP):
            return replace(self.floats.read(name, part), blocks=NVFP4, is_cut=True)
        if block_format == NVFP4:
            return self._nvfp4(name, part)
        return GgufTableReader(self.checkpoint, self.floats).read(name, part)

    def _nvfp4(self, name: str, part: MatrixPart) -> GroupedWeight:
        blocks, skipped = self.checkpoint.blocks(f"{name}.weight", part.shape, part.dim, part.start, part.stop)
        rows, inputs = len(blocks), len(range(part.shape[1])[part.inputs])
        flat, groups = blocks.flatten(0, 1), slice(skipped // GROUP, (skipped + inputs) // GROUP)
        codes = codes_of_nvfp4(flat).view(rows, -1, GROUP)[:, groups].flatten(1)
        unit = torch.tensor(self.checkpoint.scale_of_matrix(f"{name}.weight"))
        return nvfp4_weight(codes, scales_of_nvfp4(flat).view(rows, -1)[:, groups] * unit, unit)

    def _mxfp4(self, name: str, part: MatrixPart) -> GroupedWeight:
        assert part.is_whole, "each rank has whole experts"
        blocks, _ = self.checkpoint.blocks(f"{name}.weight", part.shape, part.dim, part.start, part.stop)
        rows, groups, num_bytes = blocks.shape
        flat = blocks.reshape(rows * groups, num_bytes)
        scales = scales_of_mxfp4(flat)
        scales[_are_zeros(flat)] = 0.0
        return GroupedWeight(
            codes_of_mxfp4(flat).view(rows, groups * GROUP_SIZE), scales.view(rows, groups), None, 4, is_e2m1=True
        )

    def _are_scales_near(self, name: str) -> bool:
        """Whether float16 in one unit holds all scales of the experts next to this one; blocks of zeros need none."""
        layer = f"{name.rpartition('.experts.')[0]}.experts."
        if layer not in self._has_near_scales:
            used: list[int] = []
            for each in self.checkpoint.entries:
                if each.startswith(layer) and self.checkpoint.format_of(each) == MXFP4:
                    flat = self.checkpoint.raw_blocks(each).flatten(0, 1)
                    exponents = flat[:, 0][~_are_zeros(flat)]
                    used += [int(end) for end in exponents.aminmax()] if len(exponents) else []
            highest = max(used, default=0)
            self._has_near_scales[layer] = (
                highest - min(used, default=0) <= MAX_RANGE and highest <= MXFP4_BIAS + MAX_EXPONENT
            )
        return self._has_near_scales[layer]


def _are_zeros(blocks: Tensor) -> Tensor:
    """Which of MXFP4's `blocks` [blocks, bytes] hold zeros only."""
    return ((blocks[:, 1:] & CODES_WITHOUT_SIGN) == 0).all(1)
