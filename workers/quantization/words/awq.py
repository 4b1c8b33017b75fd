"""AWQ checkpoints in AutoAWQ's "gemm" layout: 4 bits, in groups, with zero points.

qweight  [in, out / 8]      int32    eight adjacent outputs per word, in the order of AWQ_NIBBLES
qzeros   [groups, out / 8]  int32    likewise
scales   [groups, out]      float16
"""

from dataclasses import dataclass

from torch import Tensor

from ...checkpoint.matrix_reader import MatrixPart, MatrixReader, groups_of, num_groups
from ...checkpoint.safetensors_files import Checkpoint
from ...checkpoint.weight_forms import GroupedWeight, Weight
from ...kernels.cpu.library import Pool
from ...kernels.cpu.unpacking import WordLayout
from ..config import Awq
from .bit_fields import codes_of, in_awq_order

PER_WORD = 8


@dataclass(frozen=True, slots=True)
class AwqReader:
    """Reads AWQ matrices. Those without a qweight are not quantized: `float_reader` reads them."""

    checkpoint: Checkpoint
    config: Awq
    float_reader: MatrixReader
    pool: Pool | None = None  # its threads unpack codes; None: torch unpacks them

    def read(self, name: str, part: MatrixPart) -> Weight:
        if f"{name}.qweight" not in self.checkpoint.entries:
            return self.float_reader.read(name, part)
        outputs, inputs = part.shape
        size = self.config.group_size or self.config.q_group_size or -1
        groups = num_groups(self.checkpoint, f"{name}.scales", 0, inputs, size)
        wanted = groups_of(name, part, groups, None)
        scales = self.checkpoint.read(f"{name}.scales", (groups, outputs))[wanted, part.outputs]
        shape = (groups, outputs // PER_WORD)
        zeros = in_awq_order(self.checkpoint.read(f"{name}.qzeros", shape, dtypes=("I32",)))[wanted, part.outputs]
        return GroupedWeight(self._codes(name, part), scales.float().t().contiguous(), zeros.t().contiguous(), bits=4)

    def _codes(self, name: str, part: MatrixPart) -> Tensor:
        """The codes of `part`, [out, in] uint8."""
        outputs, inputs = part.shape
        shape, tensor = (inputs, outputs // PER_WORD), f"{name}.qweight"
        if part.dim == 1:
            words = self.checkpoint.read(tensor, shape, 0, part.start, part.stop, ("I32",))
            wanted, before = (outputs, part.stop - part.start), 0
        else:
            first, last = part.start // PER_WORD, -(-part.stop // PER_WORD)
            words = self.checkpoint.read(tensor, shape, 1, first, last, ("I32",))
            wanted, before = (part.stop - part.start, inputs), part.start - first * PER_WORD
        return codes_of(self.pool, words, WordLayout.AWQ, 4, wanted, before)
