"""The matrices of GGUF files: in their own blocks if there are products with them, otherwise dequantized."""

from dataclasses import dataclass, replace

from paged_serve.protocol.gguf.block_formats import FLOAT_FORMATS

from ..checkpoint.blocks.block_weight import GROUP_INPUTS, PRODUCT_FORMATS, BlockWeight
from ..checkpoint.blocks.dequantize import codes_of_q4_0, scales_of_q4_0
from ..checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from ..checkpoint.matrix_reader import FloatReader, MatrixPart, check_cuts
from ..checkpoint.weight_forms import GroupedWeight, StoredWeight

Q4_0 = "Q4_0"
GROUP_SIZE = 32  # inputs of a block of Q4_0


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
        return weight if found in FLOAT_FORMATS else replace(weight, blocks=found)


@dataclass(frozen=True, slots=True)
class GgufReader:
    """Reads projections of GGUF files. Q4_0 is int4 in groups of 32 with 8 as zero: nothing is lost."""

    checkpoint: GgufCheckpoint
    floats: FloatReader

    def read(self, name: str, part: MatrixPart) -> GroupedWeight | BlockWeight | StoredWeight:
        if self.checkpoint.format_of(f"{name}.weight") == Q4_0:
            return self._q4_0(name, part)
        return GgufTableReader(self.checkpoint, self.floats).read(name, part)

    def _q4_0(self, name: str, part: MatrixPart) -> GroupedWeight:
        check_cuts(name, part, GROUP_SIZE)
        blocks, _ = self.checkpoint.blocks(f"{name}.weight", part.shape, part.dim, part.start, part.stop)
        rows, groups, num_bytes = blocks.shape
        flat = blocks.reshape(rows * groups, num_bytes)
        codes, scales = codes_of_q4_0(flat), scales_of_q4_0(flat)
        return GroupedWeight(codes.view(rows, groups * GROUP_SIZE), scales.view(rows, groups), None, bits=4)
