"""Chooses the reader of the model's matrices, once per load."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, assert_never

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ..checkpoint.gguf.gguf_checkpoint import GgufCheckpoint
from ..checkpoint.matrix_reader import FloatReader, MatrixReader
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.weight_forms import Fp8Weight, Int8Weight
from ..kernels.cpu.library import Pool
from .bitnet import BitNetReader
from .bitsandbytes import BitsAndBytesReader
from .block_fp8 import BlockFp8Reader, CodedBlockFp8Reader
from .compressed_tensors import CompressedTensorsReader
from .config import (
    Awq,
    BitNet,
    BitsAndBytes,
    BlockFp8,
    CompressedTensors,
    Gptq,
    ModelOpt,
    QuantizationConfig,
    quantizes_kv_cache,
)
from .config_reader import read_quantization_config
from .gguf import GgufReader, GgufTableReader
from .modelopt import CodedModelOptReader, ModelOptReader
from .mxfp4 import Mxfp4Reader
from .on_load import EightBitsOnLoad, Int4OnLoad
from .report import QuantizationReport
from .words.awq import AwqReader
from .words.gptq import GptqReader

log = logging.getLogger(__name__)

ON_LOAD = ("int8", "int4", "fp8")
KV_SCALES = (".k_scale", ".v_scale", ".kv_scale")  # endings of names


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
    report, wanted = QuantizationReport(dtype.itemsize), config.quantization
    name, scheme = read_quantization_config(folder) or (None, None)
    are_floats = scheme is None or isinstance(
        scheme, BlockFp8 | BitsAndBytes | ModelOpt
    )  # to all that quantizes on load
    if wanted not in ("auto", name) and not (are_floats and wanted in ON_LOAD):
        if name is None:
            raise ConfigError(
                f"quantization={wanted}, but {folder} is not quantized; leave it out, or use int8 or int4"
            )
        raise ConfigError(f"quantization={wanted}, but {folder} is quantized by {name} already; leave it out")
    if quantizes_kv_cache(scheme):
        _skip_kv_scales(checkpoint)
    readers = _readers(checkpoint, dtype, scheme, is_transposed, pool)
    projections, head = readers.stored, readers.head
    eight_bits = Fp8Weight if wanted == "fp8" else Int8Weight
    if wanted in ("int8", "fp8"):
        projections = EightBitsOnLoad(readers.floats, report, eight_bits, pool)
    elif wanted == "int4":
        projections = Int4OnLoad(readers.floats, report, config.quantization_group_size, pool)
    quantizes_head = wanted in ("int8", "int4") if config.quantize_lm_head is None else config.quantize_lm_head
    if quantizes_head:
        head = EightBitsOnLoad(readers.plain, report, eight_bits, pool)
    return MatrixSource(projections, readers.stored, head, readers.tables, quantizes_head, report)


def _skip_kv_scales(checkpoint: Checkpoint) -> None:
    """Count the scales of a KV cache as used: keys and values that are not quantized are more precise without them."""
    log.warning(
        "the checkpoint's settings of the KV cache are not used: keys and values have the model's dtype, or that of "
        "--kv-cache-dtype, and no scales of the checkpoint"
    )
    checkpoint.skip_tensors(*(name for name in checkpoint.entries if name.endswith(KV_SCALES)))


class _Readers(NamedTuple):
    """The readers of a checkpoint that is loaded as it is stored, and of its matrices as floats."""

    plain: FloatReader
    floats: FloatReader  # of projections
    stored: MatrixReader
    head: MatrixReader
    tables: MatrixReader


def _readers(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    scheme: QuantizationConfig | None,
    is_transposed: bool,
    pool: Pool | None,
) -> _Readers:
    plain, floats = FloatReader(checkpoint, dtype), FloatReader(checkpoint, dtype, is_transposed)
    if isinstance(checkpoint, GgufCheckpoint):
        blocks = GgufReader(checkpoint, plain)
        return _Readers(plain, floats, blocks, blocks, GgufTableReader(checkpoint, plain))
    coded: MatrixReader
    match scheme:
        case None:
            return _Readers(plain, floats, Mxfp4Reader(checkpoint, floats), plain, plain)
        case BitsAndBytes():
            plain = BitsAndBytesReader(checkpoint, dtype)
            floats = BitsAndBytesReader(checkpoint, dtype, is_transposed)
            return _Readers(plain, floats, floats, plain, plain)
        case BlockFp8(weight_block_size=block):
            plain = floats = values = BlockFp8Reader(checkpoint, dtype, block=block)
            coded = CodedBlockFp8Reader(values)
        case ModelOpt():
            plain = floats = by_name = ModelOptReader(checkpoint, dtype)
            coded = CodedModelOptReader(by_name)
        case CompressedTensors():
            coded = CompressedTensorsReader(checkpoint, scheme, floats, pool)
        case Gptq():
            coded = GptqReader(checkpoint, scheme, floats, pool)
        case BitNet():
            coded = BitNetReader(scheme, floats)
        case Awq():
            coded = AwqReader(checkpoint, scheme, floats, pool)
        case _:
            assert_never(scheme)
    return _Readers(plain, floats, coded, coded, plain)
