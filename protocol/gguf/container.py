"""The GGUF container: magic, version, metadata, tensor infos, then the tensors' data (ggml's docs/gguf.md).

Nothing is mapped here, and only the header is read. Every count, length, offset and size in it is checked against the
file's size before it is used, so a truncated or hostile file is refused with one message.
"""

import hashlib
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .block_formats import BLOCK_FORMATS, BlockFormat
from .cursor import Cursor, Value
from .metadata import Metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_KEYS = MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_NAME_BYTES = 128
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 44
MAX_EXPERTS = 1 << 12  # of a layer
MAX_SMALL = 1 << 12  # elements of a tensor of rotary factors
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: rows of blocks, from `start` in the file."""

    name: str
    shape: tuple[int, ...]  # as in torch: the last dimension is contiguous and divided into blocks
    format: BlockFormat
    start: int  # in bytes from the start of the file

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements // self.format.num_elements * self.format.num_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a file whose offsets and sizes have been checked."""

    path: Path
    metadata: Metadata
    tensors: dict[str, GgufTensor]
    digest: str  # SHA-256 of the header


def read_gguf(path: Path) -> GgufFile:
    """Read the header of `path`. Raises ConfigError with the first problem found."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            cursor = Cursor(path, file, size)
            found = _read_header(cursor)
            file.seek(0)
            digest = hashlib.sha256(file.read(cursor.at)).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return GgufFile(path, *found, digest)


def _read_header(cursor: Cursor) -> tuple[Metadata, dict[str, GgufTensor]]:
    if cursor.take(4, "its magic number") != MAGIC:
        raise cursor.refused("it does not begin with GGUF")
    version = cursor.whole("I", "its version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = f"it is big-endian, of version {swapped}" if swapped in VERSIONS else f"it has version {version}"
        raise cursor.refused(f"{kind}; little-endian files of versions 2 and 3 are read")
    num_tensors, num_keys = cursor.whole("Q", "its number of tensors"), cursor.whole("Q", "its number of keys")
    for count, most, what in ((num_tensors, MAX_TENSORS, "tensors"), (num_keys, MAX_KEYS, "metadata keys")):
        if count > most:
            raise cursor.refused(f"it claims {count} {what}; at most {most} are read")
    metadata = Metadata(cursor.path, _read_metadata(cursor, num_keys))
    infos = [_read_info(cursor) for _ in range(num_tensors)]
    return metadata, _placed(cursor, _alignment(cursor, metadata), infos)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for index in range(count):
        key = cursor.name(f"the name of metadata key {index}", MAX_KEY_BYTES)
        if key in values:
            raise cursor.refused(f"the metadata key {key} occurs twice")
        values[key] = cursor.value(cursor.whole("I", f"the type of {key}"), key)
    return values


def _read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], BlockFormat, int]:
    """Name, shape, format, and offset in the data."""
    name = cursor.name("the name of a tensor", MAX_NAME_BYTES)
    num_dimensions = cursor.whole("I", f"the number of dimensions of {name}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.refused(f"tensor {name} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    shape = tuple(cursor.whole("Q", f"the shape of {name}") for _ in range(num_dimensions))[::-1]
    if min(shape) < 1 or math.prod(shape) > MAX_ELEMENTS:
        raise cursor.refused(f"tensor {name} has the shape {list(shape)}; it needs 1 to {MAX_ELEMENTS} elements")
    kind, offset = cursor.whole("I", f"the type of {name}"), cursor.whole("Q", f"the offset of {name}")
    block = BLOCK_FORMATS.get(kind)
    if block is None:
        known = ", ".join(each.name for each in BLOCK_FORMATS.values())
        raise cursor.refused(f"tensor {name} has the type {kind}, which is none of {known}")
    if shape[-1] % block.num_elements:
        raise cursor.refused(
            f"tensor {name} of {block.name} has rows of {shape[-1]} elements, not whole blocks of {block.num_elements}"
        )
    return name, shape, block, offset


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    alignment = metadata.whole("general.alignment", DEFAULT_ALIGNMENT)
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.refused(f"general.alignment={alignment} must be a power of two, at most {MAX_ALIGNMENT}")
    return alignment


def _placed(
    cursor: Cursor, alignment: int, infos: list[tuple[str, tuple[int, ...], BlockFormat, int]]
) -> dict[str, GgufTensor]:
    """The tensors in the file: each must begin where the one before it ends, padded to the alignment."""
    data_start = _padded(cursor.at, alignment)
    tensors: dict[str, GgufTensor] = {}
    end = data_start
    for name, shape, block, offset in infos:
        start = _padded(end, alignment)
        if name in tensors:
            raise cursor.refused(f"tensor {name} occurs twice")
        if data_start + offset != start:
            raise cursor.refused(f"tensor {name} is at {offset} in the data, but must be at {start - data_start}")
        tensors[name] = GgufTensor(name, shape, block, start)
        end = start + tensors[name].num_bytes
        if end > cursor.size:
            raise cursor.refused(f"tensor {name} ends at byte {end}, but the file at {cursor.size}; download it again")
    if infos and cursor.size > _padded(end, alignment):
        raise cursor.refused(f"its tensors end at byte {end}, but the file at {cursor.size}; download it again")
    return tensors


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def part_paths(path: Path) -> list[Path]:
    """The files of a model in several parts, …-00001-of-0000N.gguf, first to last; one that is whole is alone.

    Raises ConfigError if `path` is not the first, or another is missing.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, number, count = match.groups()
    paths = [path.with_name(f"{stem}-{index:05}-of-{count}.gguf") for index in range(1, int(count) + 1)]
    if number != "00001":
        raise ConfigError(f"{path} is part {int(number)} of {int(count)}; give the first part")
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise ConfigError(f"{path} is the first of {int(count)} parts, but {missing[0]} is not in the same folder")
    return paths


def check_parts(files: list[GgufFile]) -> None:
    """Raises ConfigError unless the files are all parts of one model, in order."""
    first = files[0].metadata
    count = first.whole("split.count", 1)
    if count not in (0, 1) or len(files) > 1:
        if count != len(files):
            raise ConfigError(f"{files[0].path} belongs to a model in {count} parts, but there are {len(files)}")
        for number, file in enumerate(files):
            if (found := file.metadata.whole("split.no", -1)) != number:
                raise ConfigError(f"{file.path} is part {found + 1} according to its metadata, not {number + 1}")
    total = sum(len(file.tensors) for file in files)
    if first.whole("split.tensors.count", total) != total or len({n for f in files for n in f.tensors}) != total:
        raise ConfigError(f"{files[0].path}: its parts have other tensors than its metadata says")


def floats_of(file: GgufFile, tensor: GgufTensor) -> list[float]:
    """The numbers of a small F32 tensor. Raises ConfigError if it is large or of another format."""
    count = math.prod(tensor.shape)
    if tensor.format.name != "F32" or count > MAX_SMALL:
        raise ConfigError(
            f"{file.path}: tensor {tensor.name} has {count} elements of {tensor.format.name}; "
            f"at most {MAX_SMALL} of F32 are read"
        )
    with file.path.open("rb") as opened:
        opened.seek(tensor.start)
        data = opened.read(tensor.num_bytes)
    if len(data) != tensor.num_bytes:
        raise ConfigError(f"{file.path} became shorter while it was read; download it again")
    return list(struct.unpack(f"<{count}f", data))
