"""Checkpoints of NVIDIA's ModelOpt: fp8 (block_fp8.py) and NVFP4 (words/nvfp4.py), known by their tensors' names."""

from dataclasses import dataclass

from torch import Tensor

from ..checkpoint.matrix_reader import MatrixPart
from ..checkpoint.weight_forms import Weight
from .block_fp8 import BlockFp8Reader, CodedBlockFp8Reader
from .words.nvfp4 import read_modelopt_nvfp4


@dataclass(frozen=True, slots=True)
class ModelOptReader(BlockFp8Reader):
    """Reads such matrices as floats, like its base; those of NVFP4 too."""

    def form(self, name: str) -> str:
        return "nvfp4" if self.is_nvfp4(name) else BlockFp8Reader.form(self, name)

    def stored(self, name: str, part: MatrixPart) -> Tensor:
        if self.is_nvfp4(name):
            return read_modelopt_nvfp4(self.checkpoint, name, part).dequantized()
        return BlockFp8Reader.stored(self, name, part)

    def is_nvfp4(self, name: str) -> bool:
        """Whether a matrix is stored in NVFP4."""
        return f"{name}.weight_scale_2" in self.checkpoint.entries


@dataclass(frozen=True, slots=True)
class CodedModelOptReader:
    """Reads such matrices as codes and scales. `floats` reads the others."""

    floats: ModelOptReader

    def read(self, name: str, part: MatrixPart) -> Weight:
        if self.floats.is_nvfp4(name):
            return read_modelopt_nvfp4(self.floats.checkpoint, name, part)
        return CodedBlockFp8Reader(self.floats).read(name, part)
