"""compressed-tensors checkpoints (llm-compressor): 8 bits with rounded activations, or 4 and 8 bits weight-only.

words/nvfp4.py and mxfp4.py have the formats of 4-bit floats.

format int-quantized, float-quantized:
    weight             [out, in]              int8, e4m3
    weight_scale       [out, 1], [1] or []    float; with e4m3 also [out / block rows, in / block columns, rounded up]
    input_scale        [1] or []              float, only with static activations
format pack-quantized:
    weight_packed      [out, in * bits / 32]  int32   values + 2^(bits - 1) of adjacent inputs in a word
    weight_scale       [out, groups]          float
    weight_zero_point  [out * bits / 32, groups] int32, packed along the outputs; int8 [out, groups] in older files
    weight_g_idx       [in]                   int32   the group of each input; only with activation order
    weight_shape       [2]                    int64   out, in
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ..checkpoint.matrix_reader import FloatReader, MatrixPart, activation_order, groups_of, num_groups
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.text_part import module_names
from ..checkpoint.weight_forms import Fp8BlockWeight, Fp8Weight, GroupedWeight, Int8Weight, Weight
from ..kernels.cpu.library import Pool
from ..kernels.cpu.unpacking import WordLayout
from .block_fp8 import BlockFp8Reader
from .config import EXPRESSION, Arguments, CompressedTensors, ConfigGroup
from .mxfp4 import read_compressed_mxfp4
from .words.bit_fields import WORD_BITS, read_codes, unpack_words
from .words.nvfp4 import read_compressed_nvfp4

LINEAR = "Linear"  # every projection is a module of this class


@dataclass(frozen=True, slots=True)
class CompressedTensorsReader:
    """Reads quantized matrices. `float_reader` reads the others: those that are ignored or no group's target."""

    checkpoint: Checkpoint
    config: CompressedTensors
    float_reader: FloatReader
    pool: Pool | None = None  # its threads unpack codes; None: torch unpacks them

    def read(self, name: str, part: MatrixPart) -> Weight:
        group = group_for(name, self.config)
        if group is None or self.checkpoint.is_part(f"{name}.weight"):  # experts in one tensor are no Linear modules
            return self.float_reader.read(name, part)
        assert group.weights is not None  # checked when the configuration was read
        match group.format or self.config.format:
            case "int-quantized":
                return Int8Weight(*self._eight_bits(name, part, group.weights, "I8"))
            case "float-quantized" if group.weights.strategy == "block" or group.input_activations is None:
                return self._weight_only_fp8(name, part, group.weights)
            case "float-quantized":
                return Fp8Weight(*self._eight_bits(name, part, group.weights, "F8_E4M3"))
            case "nvfp4-pack-quantized":
                return read_compressed_nvfp4(self.checkpoint, name, part)
            case "mxfp4-pack-quantized":
                return read_compressed_mxfp4(self.checkpoint, name, part, self.float_reader.dtype)
        return self._grouped(name, part, group.weights)

    def _eight_bits(self, name: str, part: MatrixPart, how: Arguments, dtype: str) -> tuple[Tensor, Tensor]:
        """The codes [out, in] and scales [out] of `part`."""
        codes = self.checkpoint.read(f"{name}.weight", part.shape, part.dim, part.start, part.stop, (dtype,))
        self.checkpoint.skip_tensors(f"{name}.input_scale")  # each token has a scale of its own, which is more precise
        scale = self.checkpoint.read_scale(f"{name}.weight_scale") if how.strategy == "tensor" else None
        if scale is None:
            shape = (1,) if how.strategy == "tensor" else (part.shape[0], 1)
            scale = self.checkpoint.read(f"{name}.weight_scale", shape)
        return codes, scale.float().expand(part.shape[0], 1)[part.outputs, 0].contiguous()

    def _weight_only_fp8(self, name: str, part: MatrixPart, how: Arguments) -> Fp8BlockWeight:
        """Activations of matrices in blocks are published as quantized, too; here they are not, which is more precise.

        Raises ConfigError if the matrix has no scales.
        """
        block = how.block_structure if how.strategy == "block" else None
        reader = BlockFp8Reader(self.checkpoint, self.float_reader.dtype, block=block or (1, part.shape[1]))
        if not reader.has(name):
            raise ConfigError(f"{self.checkpoint.folder} has no tensor {name}.weight_scale, which config.json asks for")
        return Fp8BlockWeight(*reader.coded(name, part), reader.form(name))

    def _grouped(self, name: str, part: MatrixPart, how: Arguments) -> GroupedWeight:
        outputs, inputs = part.shape
        size = how.group_size or -1 if how.strategy == "group" else -1
        groups = num_groups(self.checkpoint, f"{name}.weight_scale", 1, inputs, size)
        order = activation_order(self.checkpoint, f"{name}.weight_g_idx", inputs, groups)
        wanted = groups_of(name, part, groups, order)
        self._check_shape(name, part.shape)
        codes = read_codes(
            self.checkpoint, self.pool, f"{name}.weight_packed", part, WordLayout.ALONG_INPUTS, how.num_bits, order
        )
        scales = self.checkpoint.read(f"{name}.weight_scale", (outputs, groups))[part.outputs, wanted]
        zeros = None if how.symmetric else self._zeros(name, outputs, groups, how.num_bits)[part.outputs, wanted]
        return GroupedWeight(
            codes,
            scales.float().contiguous(),
            None if zeros is None else zeros.contiguous(),
            how.num_bits,
            order,
        )

    def _zeros(self, name: str, outputs: int, groups: int, bits: int) -> Tensor:
        """The zero points, [out, groups] uint8."""
        tensor = f"{name}.weight_zero_point"
        entry = self.checkpoint.entries.get(tensor)
        if entry is not None and entry.dtype == "I8":
            signed = self.checkpoint.read(tensor, (outputs, groups), dtypes=("I8",))
            return (signed.int() + (1 << (bits - 1))).byte()
        shape = (-(-outputs * bits // WORD_BITS), groups)
        words = self.checkpoint.read(tensor, shape, dtypes=("I32",))
        return unpack_words(words, bits, dim=0)[:outputs]

    def _check_shape(self, name: str, shape: tuple[int, int]) -> None:
        stored = self.checkpoint.read(f"{name}.weight_shape", (2,), dtypes=("I64", "I32"))
        if tuple(stored.tolist()) != shape:
            raise ConfigError(
                f"{self.checkpoint.folder}: {name}.weight_shape is {stored.tolist()}, but config.json asks for "
                f"{list(shape)}"
            )


def group_for(name: str, config: CompressedTensors) -> ConfigGroup | None:
    """The group whose targets match the module, or else the group for every Linear; None: it is not quantized."""
    names = module_names(name)
    if any(matches(names, pattern) or pattern == LINEAR for pattern in config.ignore or []):
        return None
    groups = config.config_groups.values()
    for group in groups:
        if any(matches(names, target) for target in group.targets):
            return group
    return next((group for group in groups if LINEAR in group.targets), None)


def matches(names: Sequence[str], pattern: str) -> bool:
    """Whether `pattern` is one of the module's names, or "re:" and an expression for the beginning of one."""
    if pattern.startswith(EXPRESSION):
        return any(re.match(pattern.removeprefix(EXPRESSION), name) for name in names)
    return pattern in names
