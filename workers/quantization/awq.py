"""AWQ checkpoints in AutoAWQ's "gemm" layout: 4 bits, in groups, with zero points.

qweight  [in, out / 8]      int32    eight neighbouring outputs in a word, in the order of NIBBLES
qzeros   [groups, out / 8]  int32    likewise
scales   [groups, out]      float16
"""

from dataclasses import dataclass

from torch import Tensor

from ..weights import Checkpoint
from .bit_fields import unpack_words
from .config import Awq
from .forms import GroupedWeight, Weight
from .reader import MatrixPart, MatrixReader, groups_of, num_groups

PER_WORD = 8
NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]  # output i of a word lies in its nibble NIBBLES[i]


@dataclass(frozen=True, slots=True)
class AwqReader:
    """Matrices without a qweight were left unquantized; `otherwise` reads them."""

    checkpoint: Checkpoint
    config: Awq
    otherwise: MatrixReader

    def read(self, name: str, part: MatrixPart) -> Weight:
        if f"{name}.qweight" not in self.checkpoint.entries:
            return self.otherwise.read(name, part)
        outputs, inputs = part.shape
        size = self.config.group_size or self.config.q_group_size or -1
        groups = num_groups(self.checkpoint, f"{name}.scales", 0, inputs, size)
        wanted = groups_of(name, part, groups, None)
        scales = self.checkpoint.read(f"{name}.scales", (groups, outputs))[wanted, part.outputs]
        shape = (groups, outputs // PER_WORD)
        zeros = in_order(self.checkpoint.read(f"{name}.qzeros", shape, dtypes=("I32",)))[wanted, part.outputs]
        return GroupedWeight(
            self._codes(name, part).t().contiguous(), scales.float().t().contiguous(), zeros.t().contiguous(), bits=4
        )

    def _codes(self, name: str, part: MatrixPart) -> Tensor:
        """[in, out] uint8."""
        outputs, inputs = part.shape
        shape = (inputs, outputs // PER_WORD)
        if part.dim == 1:
            words = self.checkpoint.read(f"{name}.qweight", shape, 0, part.start, part.stop, ("I32",))
            return in_order(words)
        first, last = part.start // PER_WORD, -(-part.stop // PER_WORD)
        words = self.checkpoint.read(f"{name}.qweight", shape, 1, first, last, ("I32",))
        offset = first * PER_WORD
        return in_order(words)[:, part.start - offset : part.stop - offset]


def in_order(words: Tensor) -> Tensor:
    """int32 [m, n] -> uint8 [m, 8 * n], every output in its place."""
    values = unpack_words(words, 4, dim=1)
    return values.view(len(values), -1, PER_WORD)[:, :, NIBBLES].flatten(1)
