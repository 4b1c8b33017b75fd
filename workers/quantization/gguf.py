"""The matrices of GGUF files: Q4_0 in its own blocks, the others dequantized."""

from dataclasses import dataclass, replace

from paged_serve.protocol.gguf.block_formats import FLOAT_FORMATS

from ..checkpoint.gguf.dequantize import codes_of_q4_0, scales_of_q4_0
from ..checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from ..checkpoint.matrix_reader import FloatReader, MatrixPart, check_cuts
from ..checkpoint.weight_forms import GroupedWeight, StoredWeight

Q4_0 = "Q4_0"
GROUP_SIZE = 32  # inputs of a block of Q4_0


@dataclass(frozen=True, slots=True)
class GgufReader:
    """Reads matrices of GGUF files. Q4_0 is int4 in groups of 32 with 8 as zero: nothing is lost."""

    checkpoint: GgufCheckpoint
    floats: FloatReader

    def read(self, name: str, part: MatrixPart) -> GroupedWeight | StoredWeight:
        found = self.checkpoint.format_of(f"{name}.weight")
        if found == Q4_0:
            return self._q4_0(name, part)
        weight = self.floats.read(name, part)
        return weight if found in FLOAT_FORMATS else replace(weight, blocks=found)

    def _q4_0(self, name: str, part: MatrixPart) -> GroupedWeight:
        check_cuts(name, part, GROUP_SIZE)
        blocks = self.checkpoint.blocks(f"{name}.weight", part.shape, part.dim, part.start, part.stop)
        rows, groups, num_bytes = blocks.shape
        flat = blocks.reshape(rows * groups, num_bytes)
        codes, scales = codes_of_q4_0(flat), scales_of_q4_0(flat)
        return GroupedWeight(codes.view(rows, groups * GROUP_SIZE), scales.view(rows, groups), None, bits=4)
