"""Checkpoints in e4m3 with a scale per block of weights (DeepSeek-V3, arXiv 2412.19437, 3.3.2; Qwen3's FP8 models), or
per matrix (Ministral 3; AutoFP8).

weight             [out, in]                                            e4m3
weight_scale_inv   [out / block rows, in / block columns, rounded up]   float; weight = code * scale
                   [] or [1], and of AutoFP8 weight_scale: of the matrix
activation_scale   [] or [1], and of AutoFP8 input_scale                float, only with static activations
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..checkpoint.conversion import converted
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.weight_forms import Fp8BlockWeight, StoredWeight
from .on_load import row_blocks


@dataclass(frozen=True, slots=True)
class BlockFp8Reader(FloatReader):
    """Reads such matrices as floats: codes times scales in float32, rounded once. Others are read as they are.

    The published activations are quantized, per 128 inputs and token or by a static scale; these are not, which is
    more precise.
    """

    block: tuple[int, int] = (128, 128)

    def form(self, name: str) -> str:
        """Of a matrix with scales, for users."""
        is_whole = self.checkpoint.read_scale(self._scale_of(name)) is not None
        return "fp8 with a scale per matrix" if is_whole else f"fp8 in blocks of {self.block[0]}x{self.block[1]}"

    def read(self, name: str, part: MatrixPart) -> StoredWeight:
        if not self.has(name):
            return FloatReader.read(self, name, part)
        values = converted(f"{name}.weight", self.stored(name, part), self.dtype)
        return StoredWeight((values,), self.dtype, self.form(name))

    def stored(self, name: str, part: MatrixPart) -> Tensor:
        """The matrix in float32, or as it is stored if it has no scales."""
        if not self.has(name):
            return FloatReader.stored(self, name, part)
        codes, scales = self.coded(name, part)
        values, group = torch.empty(codes.shape), codes.shape[1] // scales.shape[1]
        for at in row_blocks(codes):
            values[at] = codes[at].float() * scales[at].repeat_interleave(group, 1)
        return values

    def coded(self, name: str, part: MatrixPart) -> tuple[Tensor, Tensor]:
        """The codes [out, in] and, for each output and group of inputs, the scales [out, groups] float32.

        Groups are equally large: blocks, or parts of blocks if the matrix or the rank's share does not end with one.
        """
        (outputs, inputs), (rows, columns) = part.shape, self.block
        codes = self.checkpoint.read(f"{name}.weight", part.shape, part.dim, part.start, part.stop, ("F8_E4M3",))
        shape, scale = (-(-outputs // rows), -(-inputs // columns)), self._scale_of(name)
        of_matrix = self.checkpoint.read_scale(scale)
        scales = (self.checkpoint.read(scale, shape) if of_matrix is None else of_matrix.expand(shape)).float()
        self.checkpoint.skip_tensors(f"{name}.activation_scale", f"{name}.input_scale")
        span = range(inputs)[part.inputs]
        group = math.gcd(columns, span.start, len(span)) if len(span) else 1
        row_of = torch.arange(outputs)[part.outputs] // rows
        column_of = torch.arange(span.start, span.stop, group) // columns
        return codes, scales[row_of][:, column_of]

    def has(self, name: str) -> bool:
        """Whether a matrix is stored in this form."""
        return self._scale_of(name) in self.checkpoint.entries

    def _scale_of(self, name: str) -> str:
        """The name of its scales."""
        of_auto_fp8 = f"{name}.weight_scale"
        return of_auto_fp8 if of_auto_fp8 in self.checkpoint.entries else f"{name}.weight_scale_inv"


@dataclass(frozen=True, slots=True)
class CodedBlockFp8Reader:
    """Reads such matrices as codes and scales. `floats` reads the others."""

    floats: BlockFp8Reader

    def read(self, name: str, part: MatrixPart) -> Fp8BlockWeight | StoredWeight:
        if not self.floats.has(name):
            return self.floats.read(name, part)
        return Fp8BlockWeight(*self.floats.coded(name, part), self.floats.form(name))
