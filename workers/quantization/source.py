"""Chooses the reader of the model's matrices, once per load."""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ..checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from ..checkpoint.matrix_reader import FloatReader, MatrixReader
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.weight_forms import Fp8Weight, Int8Weight
from ..kernels.cpu.library import Pool
from .awq import AwqReader
from .bitsandbytes import BitsAndBytesReader
from .block_fp8 import BlockFp8Reader, CodedBlockFp8Reader
from .compressed_tensors import CompressedTensorsReader
from .config import Awq, BitsAndBytes, BlockFp8, CompressedTensors, Gptq, QuantizationConfig, read_quantization_config
from .gguf import GgufReader, GgufTableReader
from .gptq import GptqReader
from .mxfp4 import Mxfp4Reader
from .on_load import EightBitsOnLoad, Int4OnLoad
from .report import QuantizationReport

ON_LOAD = ("int8", "int4", "fp8")


@dataclass(frozen=True, slots=True)
class MatrixSource:
    """The readers for one load, and their report."""

    projections: MatrixReader
    stored: MatrixReader  # projections as the checkpoint has them, never quantized on load
    head: MatrixReader
    tables: MatrixReader
    quantizes_head: bool  # if so, the head cannot share the embedding's matrix
    report: QuantizationReport


def matrix_source(
    folder: Path,
    checkpoint: Checkpoint,
    config: ModelConfig,
    dtype: torch.dtype,
    pool: Pool | None = None,
    *,
    is_transposed: bool = False,
) -> MatrixSource:
    """The source for the folder's config.json and `config.quantization`. Raises ConfigError on a contradiction.

    `is_transposed`: float projections, but not the head, are stored as [in, out].
    The threads of `pool`, if given, quantize weights to int8 or int4, and unpack codes.
    """
    report = QuantizationReport(dtype.itemsize)
    found, wanted = read_quantization_config(folder), config.quantization
    plain, floats = _float_readers(checkpoint, dtype, None if found is None else found[1], is_transposed)
    if found is not None and isinstance(found[1], BlockFp8 | BitsAndBytes):
        if isinstance(found[1], BitsAndBytes) and wanted == found[0]:
            wanted = "auto"
        found = None  # to all that quantizes on load its matrices are floats
    if found is None and wanted not in ("auto", *ON_LOAD):
        raise ConfigError(f"quantization={wanted}, but {folder} is not quantized; leave it out, or use int8 or int4")
    if found is not None and wanted not in ("auto", found[0]):
        raise ConfigError(f"quantization={wanted}, but {folder} is quantized by {found[0]} already; leave it out")
    reader: MatrixReader = Mxfp4Reader(checkpoint, floats)
    if isinstance(floats, BlockFp8Reader):
        reader = CodedBlockFp8Reader(floats)
    elif found is not None:
        reader = _reader(checkpoint, found[1], floats, pool)
    head: MatrixReader = plain if isinstance(reader, Mxfp4Reader) else reader
    tables: MatrixReader = plain
    if isinstance(checkpoint, GgufCheckpoint):
        reader = head = GgufReader(checkpoint, plain)
        tables = GgufTableReader(checkpoint, plain)
    projections = stored = reader
    eight_bits = Fp8Weight if wanted == "fp8" else Int8Weight
    if wanted in ("int8", "fp8"):
        projections = EightBitsOnLoad(floats, report, eight_bits, pool)
    elif wanted == "int4":
        projections = Int4OnLoad(floats, report, config.quantization_group_size, pool)
    quantizes_head = wanted in ("int8", "int4") if config.quantize_lm_head is None else config.quantize_lm_head
    if quantizes_head:
        head = EightBitsOnLoad(plain, report, eight_bits, pool)
    return MatrixSource(projections, stored, head, tables, quantizes_head, report)


def _float_readers(
    checkpoint: Checkpoint, dtype: torch.dtype, config: QuantizationConfig | None, is_transposed: bool
) -> tuple[FloatReader, FloatReader]:
    """Of matrices as they are stored, and of projections: the values of all that `config` lets be read as floats."""
    match config:
        case BlockFp8(weight_block_size=block):
            assert block is not None  # checked when the configuration was read
            reader = BlockFp8Reader(checkpoint, dtype, block=block)
            return reader, reader
        case BitsAndBytes():
            return BitsAndBytesReader(checkpoint, dtype), BitsAndBytesReader(checkpoint, dtype, is_transposed)
        case _:
            return FloatReader(checkpoint, dtype), FloatReader(checkpoint, dtype, is_transposed)


def _reader(checkpoint: Checkpoint, config: QuantizationConfig, floats: FloatReader, pool: Pool | None) -> MatrixReader:
    match config:
        case CompressedTensors():
            return CompressedTensorsReader(checkpoint, config, floats, pool)
        case Gptq():
            return GptqReader(checkpoint, config, floats, pool)
        case Awq():
            return AwqReader(checkpoint, config, floats, pool)
        case BlockFp8() | BitsAndBytes():
            return floats
        case _:
            assert_never(config)
