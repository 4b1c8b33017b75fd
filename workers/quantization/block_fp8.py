"""Checkpoints in e4m3 with a scale per block of weights (DeepSeek-V3, arXiv 2412.19437, 3.3.2; Qwen3's FP8 models), per
matrix (Ministral 3; AutoFP8), or either (ModelOpt).

weight             [out, in]                                            e4m3
weight_scale_inv   [out / block rows, in / block columns, rounded up]   float; weight = code * scale
                   [] or [1]                                            of the matrix
activation_scale   [] or [1]                                            float, only with static activations

AutoFP8 and ModelOpt name them weight_scale and input_scale. ModelOpt also has scales [out] of the outputs, and those of
blocks are [out / block rows, 1, in / block columns, 1].
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
        shape = tuple(self.checkpoint.entries[self._scale_of(name)].shape)
        if len(shape) > 1 and (self.block[0] > 1 or shape[1] > 1):
            return f"fp8 in blocks of {self.block[0]}x{self.block[1]}"
        return "fp8 with a scale per matrix" if shape in ((), (1,)) else "fp8 with a scale per output"

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
        codes = self.checkpoint.read(f"{name}.weight", part.shape, part.dim, part.start, part.stop, ("F8_E4M3",))
        scales, (rows, columns) = self._scales(name, part.shape)
        self.checkpoint.skip_tensors(f"{name}.activation_scale", f"{name}.input_scale")
        outputs, inputs = part.shape
        span = range(inputs)[part.inputs]
        group = math.gcd(columns, span.start, len(span)) if len(span) else 1
        row_of = torch.arange(outputs)[part.outputs] // rows
        column_of = torch.arange(span.start, span.stop, group) // columns
        return codes, scales[row_of][:, column_of]

    def _scales(self, name: str, shape: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
        """The scales of a matrix of `shape`, [rows of blocks, columns of blocks] float32, and a block's sides."""
        scale, (outputs, inputs) = self._scale_of(name), shape
        if (of_matrix := self.checkpoint.read_scale(scale)) is not None:
            return of_matrix.float().view(1, 1), shape
        found = self.checkpoint.entries[scale].shape
        if len(found) == 1:
            return self.checkpoint.read(scale, (outputs,)).float().unsqueeze(1), (1, inputs)
        blocks = -(-outputs // self.block[0]), -(-inputs // self.block[1])
        stored = (blocks[0], 1, blocks[1], 1) if len(found) == 4 else blocks
        return self.checkpoint.read(scale, stored).float().view(blocks), self.block

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
