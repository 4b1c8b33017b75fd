"""GPTQ checkpoints (AutoGPTQ, GPTQModel): 4 or 8 bits, in groups, with or without activation order.

qweight  [in * bits / 32, out]      int32   values of adjacent inputs in a word, the first in its lowest bits
qzeros   [groups, out * bits / 32]  int32   values of adjacent outputs; format "gptq" stores zero point - 1
scales   [groups, out]              float16
g_idx    [in]                       int32   the group of each input; absent in the oldest files
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.matrix_reader import MatrixPart, MatrixReader, activation_order, groups_of, num_groups
from ...checkpoint.safetensors_files import Checkpoint
from ...checkpoint.weight_forms import GroupedWeight, Weight
from ...kernels.cpu.library import Pool
from ...kernels.cpu.unpacking import WordLayout
from ..config import Gptq
from .bit_fields import WORD_BITS, read_codes, unpack_words


@dataclass(frozen=True, slots=True)
class GptqReader:
    """Reads GPTQ matrices. Those without a qweight are not quantized: `float_reader` reads them."""

    checkpoint: Checkpoint
    config: Gptq
    float_reader: MatrixReader
    pool: Pool | None = None  # its threads unpack codes; None: torch unpacks them

    def read(self, name: str, part: MatrixPart) -> Weight:
        if f"{name}.qweight" not in self.checkpoint.entries:
            return self.float_reader.read(name, part)
        outputs, inputs = part.shape
        groups = num_groups(self.checkpoint, f"{name}.scales", 0, inputs, self.config.group_size)
        order = activation_order(self.checkpoint, f"{name}.g_idx", inputs, groups)
        wanted = groups_of(name, part, groups, order)
        codes = read_codes(
            self.checkpoint, self.pool, f"{name}.qweight", part, WordLayout.DOWN_INPUTS, self.config.bits, order
        )
        scales = self.checkpoint.read(f"{name}.scales", (groups, outputs))[wanted, part.outputs]
        zeros = self._zeros(name, groups, outputs)[wanted, part.outputs]
        return GroupedWeight(
            codes,
            scales.float().t().contiguous(),
            None if bool((zeros == 1 << (self.config.bits - 1)).all()) else zeros.t().contiguous(),
            self.config.bits,
            order,
        )

    def _zeros(self, name: str, groups: int, outputs: int) -> Tensor:
        """The zero points, [groups, out] uint8."""
        bits = self.config.bits
        shape = (groups, outputs * bits // WORD_BITS)
        stored = unpack_words(self.checkpoint.read(f"{name}.qzeros", shape, dtypes=("I32",)), bits, dim=1)
        if self.config.checkpoint_format == "gptq_v2":
            return stored
        return (stored + 1) & ((1 << bits) - 1)  # a zero point of 0 was stored as -1, all bits set


def skip_zero_biases(checkpoint: Checkpoint) -> None:
    """Mark biases that the model does not have as used: AutoGPTQ wrote biases of zero for every projection.

    Raises ConfigError if one is not zero.
    """
    for name, entry in checkpoint.entries.items():
        module, _, kind = name.rpartition(".")
        is_extra = kind == "bias" and name not in checkpoint.used and f"{module}.qweight" in checkpoint.entries
        if is_extra and torch.count_nonzero(checkpoint.read(name, tuple(entry.shape))):
            raise ConfigError(f"{checkpoint.folder}: {name} is not zero, but config.json describes a model without it")
