"""The record of a file of packed weights: its contents and its source."""

import hashlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
import torch

from paged_serve import __version__
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.protocol.plugins import PluginKind, digest_of_code

from ...checkpoint.packed_weight import PackedWeight, WeightFormat
from ...kernels.cpu.packing import LAYOUT

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64, torch.uint8)
}
MAX_RECORD_BYTES = 256 << 20
ORDER_OF_ROWS = 1  # to be raised when matrix_rows.py changes the order of a projection's rows


class StoredTensor(msgspec.Struct, frozen=True):
    """The place of a tensor's bytes in the file."""

    offset: Size
    shape: list[Size]
    dtype: str
    checksum: str


class StoredPacked(msgspec.Struct, frozen=True):
    """The places of a PackedWeight's tensors in the file, and its other fields."""

    format: WeightFormat
    outputs: Size
    inputs: Size
    data: StoredTensor
    scales: StoredTensor | None
    order: StoredTensor | None
    group_size: Size
    has_zeros: bool
    skipped: Size = 0
    rows_dtype: str = ""
    scale_inputs: Size = 0
    is_cut: bool = False

    def weight(self, data: torch.Tensor, scales: torch.Tensor | None, order: torch.Tensor | None) -> PackedWeight:
        return PackedWeight(
            self.format,
            data,
            self.outputs,
            self.inputs,
            scales,
            self.group_size,
            self.has_zeros,
            order,
            self.skipped,
            DTYPES.get(self.rows_dtype),
            self.scale_inputs,
            self.is_cut,
        )


class SourceFile(msgspec.Struct, frozen=True):
    """A file of the checkpoint. An unchanged stamp means that the file has not been written to."""

    name: str
    stamp: tuple[int, int, int, int]  # size, mtime, ctime, inode number
    checksum: str


class Record(msgspec.Struct, frozen=True):
    """The trailer of a file of packed weights."""

    key: str
    sources: list[SourceFile]
    weights: dict[str, list[StoredPacked]]
    tensors: dict[str, StoredTensor]
    weights_bytes: Size
    facts: dict[str, str]  # of quantization


def stamp_of(path: Path) -> tuple[int, int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def key_of(folder: Path, config: ModelConfig, entries: object, dtype: torch.dtype, rank: int, size: int) -> str:
    """SHA-256 of everything that determines packed weights except their values; `entries`: the checkpoint's headers."""
    settings = [folder / name for name in ("config.json", "quantize_config.json", "hf_quant_config.json")]
    fields = (
        __version__,
        (LAYOUT, ORDER_OF_ROWS),
        str(folder.resolve()),
        str(dtype),
        (rank, size),
        (config.quantization, config.quantization_group_size, config.quantize_lm_head),
        digest_of_code([(PluginKind.FAMILY, config.plugins)]),
        [path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "" for path in settings],
        entries,
    )
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def write_record(file: int, record: Record) -> None:
    """Append to the file the record, its digest and its length."""
    raw = msgspec.json.encode(record)
    tail = raw + hashlib.sha256(raw).digest() + len(raw).to_bytes(8, "little")
    while tail:
        tail = tail[os.write(file, tail) :]


def read_record(file: int) -> Record | None:
    """The record at the file's end; None if it is missing or damaged."""
    end = os.fstat(file).st_size - 40
    if end < 0:
        return None
    tail = os.pread(file, 40, end)
    length = int.from_bytes(tail[32:], "little")
    if length > min(end, MAX_RECORD_BYTES):
        return None
    raw = os.pread(file, length, end - length)
    if len(raw) != length or hashlib.sha256(raw).digest() != tail[:32]:
        return None
    try:
        return msgspec.json.decode(raw, type=Record)
    except msgspec.DecodeError:
        return None
