"""Checkpoints of bitsandbytes: 4 bits (QLoRA, arXiv 2305.14314) or 8 (LLM.int8, arXiv 2208.07339), weights alone.

weight                                  [out * in / 2, 1]  U8    4 bits: two codes a byte, the first in the upper half
weight.quant_map                        [16]               F32   the numbers that codes stand for
weight.absmax                           [blocks]           F32   scales; or U8, codes of nested_quant_map
weight.nested_absmax, .nested_quant_map                    F32   scale = map[code] * nested_absmax + nested_offset
weight.quant_state.bitsandbytes__nf4    [length]           U8    JSON with shape and sizes of blocks; or …__fp4
weight                                  [out, in]          I8    8 bits: weight = code * SCB / 127
SCB                                     [out]              F32
"""

import math
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ..checkpoint.conversion import converted
from ..checkpoint.matrix_reader import FloatReader, MatrixPart
from ..checkpoint.weight_forms import StoredWeight

KINDS = ("nf4", "fp4")


class QuantState(msgspec.Struct, frozen=True):
    """How the codes of a matrix of 4 bits are to be read."""

    shape: tuple[int, int]
    blocksize: int
    nested_blocksize: int | None = None  # None: the scales are floats
    nested_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class BitsAndBytesReader(FloatReader):
    """Reads such matrices as floats: numbers times scales in float32, rounded once. Others are read as they are."""

    def read(self, name: str, part: MatrixPart) -> StoredWeight:
        kind = self._kind(name)
        if not kind:
            return FloatReader.read(self, name, part)
        values = converted(f"{name}.weight", self.stored(name, part), self.dtype)
        return StoredWeight((values,), self.dtype, f"bitsandbytes {kind}")

    def stored(self, name: str, part: MatrixPart) -> Tensor:
        """The matrix in float32, or as it is stored if it is not quantized."""
        kind = self._kind(name)
        if not kind:
            return FloatReader.stored(self, name, part)
        if kind == "int8":
            self._check_rows(f"{name}.weight_format")
            codes = self.checkpoint.read(f"{name}.weight", part.shape, part.dim, part.start, part.stop, ("I8",))
            scales = self.checkpoint.read(f"{name}.SCB", part.shape[:1]).float()[part.outputs]
            return codes.float() * (scales / 127)[:, None]
        return self._of_four_bits(f"{name}.weight", kind, part.shape)[part.outputs, part.inputs].contiguous()

    def _kind(self, name: str) -> str:
        """ "nf4", "fp4" or "int8"; "": the matrix is stored as floats."""
        entries = self.checkpoint.entries
        if f"{name}.SCB" in entries:
            return "int8"
        return next((kind for kind in KINDS if _state_name(f"{name}.weight", kind) in entries), "")

    def _check_rows(self, name: str) -> None:
        if name in self.checkpoint.entries and (order := int(self.checkpoint.read(name, (), dtypes=("U8",)))):
            raise ConfigError(f"{self.checkpoint.folder}: {name} is {order}; only 0, row after row, is supported")

    def _of_four_bits(self, name: str, kind: str, shape: tuple[int, int]) -> Tensor:
        state, count = self._state(_state_name(name, kind), shape), math.prod(shape)
        packed = self.checkpoint.read(name, (-(-count // 2), 1), dtypes=("U8",)).flatten()
        codes = torch.stack([packed >> 4, packed & 15], dim=1).flatten()[:count]
        numbers = self.checkpoint.read(f"{name}.quant_map", (16,)).float()
        scales = self._scales(name, state, -(-count // state.blocksize))
        values = numbers[codes.int()]
        values *= scales.repeat_interleave(state.blocksize)[:count]
        return values.view(shape)

    def _scales(self, name: str, state: QuantState, blocks: int) -> Tensor:
        if (size := state.nested_blocksize) is None:
            return self.checkpoint.read(f"{name}.absmax", (blocks,)).float()
        codes = self.checkpoint.read(f"{name}.absmax", (blocks,), dtypes=("U8",))
        numbers = self.checkpoint.read(f"{name}.nested_quant_map", (256,)).float()
        outer = self.checkpoint.read(f"{name}.nested_absmax", (-(-blocks // size),)).float()
        return numbers[codes.int()] * outer.repeat_interleave(size)[:blocks] + state.nested_offset

    def _state(self, name: str, shape: tuple[int, int]) -> QuantState:
        length = self.checkpoint.entries[name].shape
        text = bytes(self.checkpoint.read(name, tuple(length), dtypes=("U8",)).flatten().tolist())
        try:
            state = msgspec.json.decode(text, type=QuantState)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{self.checkpoint.folder}: {name} cannot be used: {error}") from error
        if state.shape != shape or state.blocksize < 1 or (state.nested_blocksize or 1) < 1:
            raise ConfigError(
                f"{self.checkpoint.folder}: {name} describes {list(state.shape)} in blocks of {state.blocksize}, but "
                f"config.json asks for {list(shape)}"
            )
        return state


def _state_name(name: str, kind: str) -> str:
    return f"{name}.quant_state.bitsandbytes__{kind}"
