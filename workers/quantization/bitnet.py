"""BitNet's checkpoints (arXiv 2402.17764): ternary weights with one scale a matrix, int8 activations per token (W8A8).

packed, offline:
    weight          [out / 4, in] uint8   bits 2 i and 2 i + 1: the weight of output row + i * out / 4, plus 1
    weight_scale    [1]           float   weight = code * scale; of the class bitlinear code / scale
online:
    weight          [out, in]     float   rounded when it is loaded; the scale is the mean of absolute values
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ..checkpoint.conversion import check_finite
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.weight_forms import Int8Weight, Weight
from .config import BitNet
from .on_load import row_blocks

IN_A_BYTE = 4
LEAST_SCALE = 1e-5
BOUNDARY = r"(?:(?<=\.)|(?=\.|$))"  # after a pattern that a module's name begins with


@dataclass(frozen=True, slots=True)
class BitNetReader:
    """Reads ternary matrices as int8. `floats` reads the others: those without scales, or which are not converted."""

    config: BitNet
    floats: FloatReader

    def read(self, name: str, part: MatrixPart) -> Weight:
        if f"{name}.weight_scale" in self.floats.checkpoint.entries:
            return self._packed(name, part)
        if self.config.quantization_mode == "offline" or not is_converted(name, self.config):
            return self.floats.read(name, part)
        return self._rounded(name, part)

    def _packed(self, name: str, part: MatrixPart) -> Int8Weight:
        (outputs, inputs), checkpoint = part.shape, self.floats.checkpoint
        height, rows = outputs // IN_A_BYTE, torch.arange(outputs)[part.outputs]
        stored = checkpoint.read(f"{name}.weight", (height, inputs), dtypes=("U8",))[:, part.inputs]
        shifts = (2 * (rows // max(height, 1))).to(torch.uint8).unsqueeze(1)
        codes = (stored[rows % max(height, 1)] >> shifts) & 3
        if codes.numel() and int(codes.max()) > 2:
            raise ConfigError(f"tensor {name}.weight holds codes that are not ternary; download the model again")
        scale = checkpoint.read(f"{name}.weight_scale", (1,)).float()
        return Int8Weight(
            codes.to(torch.int8) - 1,
            (1 / scale if self.config.linear_class == "bitlinear" else scale).repeat(len(rows)),
        )

    def _rounded(self, name: str, part: MatrixPart) -> Int8Weight:
        """A rank with a share of the matrix still reads all of it, to compute the scale."""
        whole = self.floats.stored(name, MatrixPart(part.shape, 0, 0, part.shape[0]))
        total = sum(whole[at].float().abs().sum(dtype=torch.float64) for at in row_blocks(whole))
        scale = torch.as_tensor(total / max(whole.numel(), 1)).float().clamp(min=LEAST_SCALE)
        check_finite(f"{name}.weight", scale, lambda: whole)
        matrix = whole[part.outputs, part.inputs]
        codes = torch.empty(matrix.shape, dtype=torch.int8)
        for at in row_blocks(matrix):
            codes[at] = _ternary(matrix[at].float(), scale)
        return Int8Weight(codes, scale.repeat(len(codes)))


def _ternary(values: Tensor, scale: Tensor) -> Tensor:
    return (values * (1.0 / scale)).round().clamp(-1, 1).to(torch.int8)


def is_converted(name: str, config: BitNet) -> bool:
    """Whether transformers replaces the module: no pattern begins its name, up to a dot or the end, or ends it."""
    patterns = ["lm_head"] if config.modules_to_not_convert is None else config.modules_to_not_convert
    return not any(re.match(f"(?:{each}){BOUNDARY}", name) or name.endswith(each) for each in patterns)
