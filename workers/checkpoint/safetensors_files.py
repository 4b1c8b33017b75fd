"""Reads checkpoints in safetensors, in one file or in shards: files are checked, mapped, and read slice by slice."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file

from .stacked_experts import StackedPart
from .weight_files import why_absent

DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "I32": 4, "I64": 8}
FLOATS = ("BF16", "F16", "F32", "F64")
MAX_HEADER_BYTES = 100 << 20


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor in a file's header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Index(msgspec.Struct, frozen=True):
    """The contents of model.safetensors.index.json: the shard of each tensor."""

    weight_map: dict[str, str]


class Checkpoint:
    """The tensors of a folder by name. Data is read only by `read`; files that contradict their headers are refused."""

    floats: tuple[str, ...] = FLOATS  # the dtypes that `read` accepts if it is given none
    own_names: Mapping[str, Any] = MappingProxyType({})  # fields of WeightNames that these files have otherwise

    def __init__(self, folder: Path):
        self.folder = folder
        self.entries: dict[str, TensorEntry] = {}
        self.used: set[str] = set()  # names of tensors that were read, wholly or in part
        self.read_bytes = 0  # the full size of the tensors in `used`
        self._file_of: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        self._parts: dict[str, StackedPart] = {}
        self._of_projection: dict[str, list[str]] = {}
        self._read_headers()
        self.total_bytes = self._sum_of_bytes()

    def _sum_of_bytes(self) -> int:
        return sum(entry.data_offsets[1] - entry.data_offsets[0] for entry in self.entries.values())

    def _read_headers(self) -> None:
        files = _files(self.folder)
        indexed = {name: path for path, names in files.items() for name in names}
        for path, expected in files.items():
            entries = read_header(path)
            missing = sorted(expected - entries.keys())
            if missing:
                raise ConfigError(f"{path} lacks {_listed(missing)}, which it holds according to the index")
            entries = {name: entry for name, entry in entries.items() if indexed.get(name, path) == path}
            self.entries.update(entries)
            self._file_of.update(dict.fromkeys(entries, path))

    def keep(self, beginnings: tuple[str, ...]) -> None:
        """Forget all tensors whose names begin otherwise: what is loaded does not need them."""
        self.entries = {name: entry for name, entry in self.entries.items() if name.startswith(beginnings)}
        self.total_bytes = self._sum_of_bytes()

    def split(self, name: str, part: StackedPart) -> None:
        """From now on `name` is a part of a stacked tensor, and no tensor in a file."""
        self._parts[name] = part

    def is_part(self, name: str) -> bool:
        """Whether `name` is a part of a stacked tensor."""
        return name in self._parts

    def skip(self, projection: str) -> None:
        """Count the tensors of a projection as used: another rank reads them."""
        if not self._of_projection:
            for name in self.entries:
                matrix, _, ending = name.partition(".weight.")  # endings of bitsandbytes
                self._of_projection.setdefault(matrix if ending else name.rpartition(".")[0], []).append(name)
        for name in self._of_projection.get(projection, ()):
            self._use(name)

    def skip_tensors(self, *names: str) -> None:
        """Count those tensors that are in the files as used: nothing depends on them."""
        for name in names:
            if name in self.entries:
                self._use(name)

    def read_scale(self, name: str) -> Tensor | None:
        """A tensor of shape [] or [1], as a scalar; None if it is absent or of another shape."""
        entry = self.entries.get(name)
        if entry is None or tuple(entry.shape) not in ((), (1,)):
            return None
        return self.read(name, tuple(entry.shape)).reshape(())

    def read(
        self,
        name: str,
        shape: tuple[int, ...],
        dim: int = 0,
        start: int = 0,
        stop: int | None = None,
        dtypes: tuple[str, ...] = (),
    ) -> Tensor:
        """Read [start, stop) along `dim` of tensor `name`, which must have this full `shape` and one of `dtypes`."""
        if name in self._parts:
            return self._read_part(self._parts[name], shape, dim, slice(start, stop))
        self._check_and_count(name, shape, dtypes or self.floats)
        return self._values(name, shape, dim, slice(start, stop))

    def _values(self, name: str, shape: tuple[int, ...], dim: int, span: slice) -> Tensor:
        """The values of `span` along `dim`."""
        where = [slice(None)] * len(shape)
        if shape:
            where[dim] = span
        loaded: Tensor = self._opened(self._file_of[name]).get_slice(name)[tuple(where)]
        return loaded

    def _check_and_count(self, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        """Raises ConfigError unless tensor `name` has this shape and one of `dtypes`; counts it as used."""
        entry = self.entries.get(name)
        if entry is None:
            raise ConfigError(f"{self.folder} has no tensor {name}, which its config.json asks for")
        if tuple(entry.shape) != shape:
            raise ConfigError(
                f"{self._file_of[name]}: tensor {name} has shape {entry.shape}, but config.json asks for {list(shape)}"
            )
        if entry.dtype not in dtypes:
            raise ConfigError(
                f"{self._file_of[name]}: tensor {name} has dtype {entry.dtype}; supported: {', '.join(dtypes)}"
            )
        self._use(name)

    def mxfp4_part(self, name: str) -> StackedPart | None:
        """The part of a stacked tensor that `name` is, if the tensor is stored in MXFP4."""
        part = self._parts.get(name)
        return None if part is None or f"{part.name}_blocks" not in self.entries else part

    def read_mxfp4(self, part: StackedPart, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The blocks and the scales of the experts [start, stop) of the tensor that `part` is a part of."""
        (kind, size), (other, other_size) = part.mxfp4_shapes()
        blocks = self.read(f"{part.name}_{kind}", size, 0, start, stop, ("U8",))
        return blocks, self.read(f"{part.name}_{other}", other_size, 0, start, stop, ("U8",))

    def _read_part(self, part: StackedPart, shape: tuple[int, ...], dim: int, where: slice) -> Tensor:
        if f"{part.name}_blocks" in self.entries:
            matrix = part.of_mxfp4(*self.read_mxfp4(part, *part.span))
        else:
            matrix = part.of(self.read(part.name, part.stored_shape, 0, *part.span))
        assert tuple(matrix.shape) == shape, (part, shape)
        return matrix[where] if dim == 0 else matrix[:, where]

    def _use(self, name: str) -> None:
        if name not in self.used:
            self.used.add(name)
            start, stop = self.entries[name].data_offsets
            self.read_bytes += stop - start

    @property
    def files(self) -> list[Path]:
        return sorted(set(self._file_of.values()))

    def close(self) -> None:
        """Unmap the files; the next `read` maps them again."""
        self._open.clear()

    def _opened(self, path: Path) -> Any:
        if path not in self._open:
            try:
                self._open[path] = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
        return self._open[path]


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors in `path`, after checking every length in its header against the size of the file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            _check_header_size(path, header_bytes, size)
            header = file.read(header_bytes)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return _checked_header(path, header, data_bytes=size - 8 - header_bytes)


def parse_header(path: Path, contents: bytes | bytearray) -> tuple[dict[str, TensorEntry], int]:
    """The tensors in `contents`, those of `path`, checked like those of `read_header`, and where their data begins."""
    header_bytes = int.from_bytes(contents[:8], "little")
    _check_header_size(path, header_bytes, len(contents))
    start = 8 + header_bytes
    return _checked_header(path, bytes(contents[8:start]), len(contents) - start), start


def _check_header_size(path: Path, header_bytes: int, size: int) -> None:
    if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
        raise ConfigError(
            f"{path} is not a complete safetensors file: its header should take {8 + header_bytes} bytes, but "
            f"the file has {size}; download it again"
        )


def _checked_header(path: Path, header: bytes, data_bytes: int) -> dict[str, TensorEntry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} has a damaged header: {error}") from error
    _check_offsets(path, entries, data_bytes)
    return entries


def _check_offsets(path: Path, entries: dict[str, TensorEntry], data_bytes: int) -> None:
    """Check that tensors are contiguous, have the sizes of their shapes, and fill the file. Raises ConfigError."""
    expected_start = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, end = entry.data_offsets
        if start != expected_start or end < start or min(entry.shape, default=0) < 0:
            raise ConfigError(f"{path}: tensor {name} is at bytes {start} to {end}, but must start at {expected_start}")
        item_bytes = DTYPE_BYTES.get(entry.dtype)
        if item_bytes is not None and end - start != item_bytes * math.prod(entry.shape):
            raise ConfigError(
                f"{path}: tensor {name} of {entry.dtype} {entry.shape} takes {item_bytes * math.prod(entry.shape)} "
                f"bytes, but has {end - start} in the header"
            )
        expected_start = end
    if expected_start != data_bytes:
        raise ConfigError(
            f"{path} is damaged: its tensors take {expected_start} bytes, but it has {data_bytes}; download it again"
        )


def _files(folder: Path) -> dict[Path, set[str]]:
    """The folder's weight files, with the names of the tensors in each according to its index, if it has one."""
    single, index_path = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if not index_path.is_file():
        if single.is_symlink() and not single.exists():
            raise ConfigError(f"{single} is a link to a file that is gone; download the model again")
        if not single.is_file():
            raise ConfigError(
                f"{folder} has neither model.safetensors nor model.safetensors.index.json; {why_absent(folder)}"
            )
        return {single: set()}
    index = read_json_file(index_path, Index)
    files: dict[Path, set[str]] = {}
    for name, file_name in index.weight_map.items():
        if Path(file_name).name != file_name:
            raise ConfigError(f"{index_path} names {file_name!r}, which is outside the folder")
        files.setdefault(folder / file_name, set()).add(name)
    absent = sorted(path.name for path in files if not os.path.isfile(path))  # false also for a name that is too long
    if absent:
        raise ConfigError(f"{folder} lacks {_listed(absent)}, which its index names; download the model again")
    return files


def _listed(names: list[str], most: int = 8) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def check_names(checkpoint: Checkpoint, unused_endings: tuple[str, ...], unused_prefixes: tuple[str, ...] = ()) -> None:
    """Raises ConfigError naming unused tensors: a model without them would differ from its checkpoint."""
    unexpected = sorted(
        name
        for name in checkpoint.entries.keys() - checkpoint.used
        if not name.endswith(unused_endings) and not name.startswith(unused_prefixes)
    )
    if unexpected:
        raise ConfigError(
            f"{checkpoint.folder} holds tensors that its config.json does not explain: {_listed(unexpected)}"
        )
