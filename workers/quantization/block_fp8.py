"""Checkpoints in e4m3 with a scale per block of weights (DeepSeek-V3, arXiv 2412.19437, 3.3.2; Qwen3's FP8 models).

weight             [out, in]                                            e4m3
weight_scale_inv   [out / block rows, in / block columns, rounded up]   float; weight = code * scale
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoint.conversion import converted
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.weight_forms import StoredWeight
from .on_load import row_blocks


@dataclass(frozen=True, slots=True)
class BlockFp8Reader(FloatReader):
    """Reads such matrices as floats: codes times scales in float32, rounded once. Others are read as they are.

    The published activations are quantized per 128 inputs and token; these are not, which is more precise.
    """

    block: tuple[int, int] = (128, 128)

    def read(self, name: str, part: MatrixPart) -> StoredWeight:
        if not self._has(name):
            return FloatReader.read(self, name, part)
        form = f"fp8 in blocks of {self.block[0]}x{self.block[1]}"
        values = converted(f"{name}.weight", self.stored(name, part), self.dtype)
        return StoredWeight((values,), self.dtype, form)

    def stored(self, name: str, part: MatrixPart) -> Tensor:
        """The matrix in float32, or as it is stored if it has no scales."""
        if not self._has(name):
            return FloatReader.stored(self, name, part)
        (outputs, inputs), (rows, columns) = part.shape, self.block
        codes = self.checkpoint.read(f"{name}.weight", part.shape, part.dim, part.start, part.stop, ("F8_E4M3",))
        shape = -(-outputs // rows), -(-inputs // columns)
        scales = self.checkpoint.read(f"{name}.weight_scale_inv", shape).float()
        row_of, column_of = torch.arange(outputs)[part.outputs] // rows, torch.arange(inputs)[part.inputs] // columns
        values = torch.empty(codes.shape)
        for at in row_blocks(codes):
            values[at] = codes[at].float() * scales[row_of[at]][:, column_of]
        return values

    def _has(self, name: str) -> bool:
        return f"{name}.weight_scale_inv" in self.checkpoint.entries
