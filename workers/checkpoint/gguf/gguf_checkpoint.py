"""Reads the tensors of GGUF files like those of a safetensors checkpoint: under the same names, in the same order."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.block_formats import DEQUANTIZED_FORMATS, FLOAT_FORMATS, SUPPORTED_FORMATS
from paged_serve.protocol.gguf.container import GgufFile, GgufTensor, check_parts, read_gguf

from ..blocks.dequantize import DEQUANTIZERS
from ..conversion import converted
from ..safetensors_files import Checkpoint, TensorEntry
from ..text_part import beginnings_in
from .expert_tensors import expert_tensors
from .names import ROPE_TENSORS, tensor_layout
from .row_orders import DeltaHeads, Kind, Order, Reordered, checked, interleaved, reordered
from .split_latent import KEYS_OF_LATENT, VALUES_OF_LATENT, WHOLE, SplitLatent, as_matrix
from .tensor_layout import TensorLayout, name_in_layer

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MAX_MATRICES = 1 << 18  # with those of all experts: more than any model has
NVFP4, SCALE, INPUT_SCALE = "NVFP4", ".scale", ".input_scale"
ELEMENTS_AT_ONCE = 1 << 18  # few enough that the float32 temporaries stay in the cache


def gguf_files(folder: Path) -> list[Path]:
    """The GGUF files in `folder`, the first part first; empty unless the folder was made of them."""
    return sorted(folder.glob("*.gguf")) if not any(folder.glob("*.safetensors")) else []


def modules_in(file: GgufFile, block_format: str) -> Iterator[str]:
    """The names of the matrices of `file` in this format, without their ending."""
    for tensor in file.tensors.values():
        if tensor.format.name == block_format:
            yield tensor.name.removesuffix(".weight")


def open_checkpoint(folder: Path, dtype: torch.dtype) -> Checkpoint:
    """The checkpoint in `folder`, of safetensors or of GGUF files; blocks of the latter are dequantized to `dtype`.

    Of a model that also reads images or audio, it holds the text part alone.
    """
    if gguf_files(folder):
        return GgufCheckpoint(folder, dtype)
    checkpoint = Checkpoint(folder)
    if beginnings := beginnings_in(folder, checkpoint.entries):
        checkpoint.keep(beginnings)
    return checkpoint


class GgufCheckpoint(Checkpoint):
    """The tensors of a folder's GGUF files, in the names and the row order of a Hugging Face checkpoint.

    `read` returns floats in their stored dtype, and dequantizes blocks: in float32, then rounded to `dtype`.
    """

    floats = SUPPORTED_FORMATS

    def __init__(self, folder: Path, dtype: torch.dtype):
        self._dtype = dtype
        self._stored: dict[str, GgufTensor] = {}
        self._orders: dict[str, Order] = {}  # of rows that the file has in another order
        self._columns: dict[str, Reordered] = {}
        self._scaled: dict[str, tuple[str, int]] = {}  # name of a matrix in NVFP4 -> that of its tensor, and the expert
        self._split: dict[str, SplitLatent] = {}  # name -> its two tensors
        super().__init__(folder)

    def _read_headers(self) -> None:
        files = [read_gguf(path) for path in gguf_files(self.folder)]
        check_parts(files)
        first = files[0].metadata
        architecture = first.text("general.architecture")
        self._layout = tensor_layout(
            architecture, {name for file in files for name in file.tensors}, str(files[0].path)
        )
        self.own_names = self._layout.own_names
        self._num_layers = first.whole(f"{architecture}.block_count", 0) - first.whole(
            f"{architecture}.nextn_predict_layers", 0
        )
        has_delta = bool(self._layout.row_orders or self._layout.divided)
        self._delta = DeltaHeads.read(first, architecture) if has_delta else None
        self._metadata, self._architecture = first, architecture
        scales = {f"{module}{SCALE}" for file in files for module in modules_in(file, NVFP4)}
        for file in files:
            for tensor in file.tensors.values():
                if tensor.name.replace(INPUT_SCALE, SCALE) in scales and not self._layout.name(tensor.name):
                    self._stored[tensor.name], self._file_of[tensor.name] = tensor, file.path
                elif tensor.name not in ROPE_TENSORS:
                    self._add_named(file, tensor)
        self._join_split()

    def _join_split(self) -> None:
        """Replace the two tensors of each projection from the latent by the one that Hugging Face checkpoints have."""
        for keys in [name for name in self.entries if f".{KEYS_OF_LATENT}." in name]:
            values, whole = (keys.replace(KEYS_OF_LATENT, other) for other in (VALUES_OF_LATENT, WHOLE))
            if values not in self.entries:
                raise ConfigError(f"{self._file_of[keys]}: it has a tensor attn_k_b without attn_v_b")
            split = SplitLatent(self._stored[keys], self._stored[values])
            split.check(str(self._file_of[keys]))
            for name in (keys, values):
                del self.entries[name]
                self._stored[name] = as_matrix(self._stored[name])
            self.entries[whole] = TensorEntry("F32", list(split.shape), (0, split.num_bytes))
            self._split[whole], self._file_of[whole] = split, self._file_of[keys]

    def _add_named(self, file: GgufFile, tensor: GgufTensor) -> None:
        if of_experts := self._layout.names_of_experts(tensor.name, self._num_layers):
            if len(self.entries) + tensor.shape[0] * len(of_experts) > MAX_MATRICES:
                raise ConfigError(
                    f"{file.path}: with the experts of {tensor.name} there are over {MAX_MATRICES} matrices"
                )
            for index, (name, matrix) in enumerate(expert_tensors(file.path, tensor, of_experts)):
                self._add(file, name, matrix, self._layout)
                self._scaled[name] = tensor.name, index // len(of_experts)
            return
        if parts := self._layout.divided.get(name_in_layer(tensor.name), ()):
            for name, kind in parts:
                self._add_part(file, self._layout.layer.format(tensor.name.split(".")[1]) + name, tensor, kind)
            return
        found = self._layout.name(tensor.name, self._num_layers)
        if found is None:
            raise ConfigError(f"{file.path}: tensor {tensor.name} is not one of the architecture's")
        self._add(file, found, self._layout.reshape(tensor), self._layout)

    def _add(self, file: GgufFile, name: str, tensor: GgufTensor, layout: TensorLayout) -> None:
        block = tensor.format.name
        if block not in SUPPORTED_FORMATS or (len(tensor.shape) == 1 and block not in FLOAT_FORMATS):
            raise ConfigError(
                f"{file.path}: tensor {tensor.name} {list(tensor.shape)} has the format {block}; supported: "
                f"{', '.join(SUPPORTED_FORMATS)}, and for vectors {', '.join(FLOAT_FORMATS)}"
            )
        if name in self.entries:
            raise ConfigError(
                f"{file.path}: tensor {tensor.name} is in the place of another, {self._stored[name].name}"
            )
        self.entries[name] = TensorEntry(block, list(tensor.shape), (tensor.start, tensor.start + tensor.num_bytes))
        self._stored[name], self._file_of[name] = tensor, file.path
        self._scaled[name] = tensor.name, 0
        if layout.are_rows_interleaved and (module := name.split(".")[-2]) in ("q_proj", "k_proj"):
            heads = self._heads_of(module, int(tensor.name.split(".")[1]))
            if heads < 1 or tensor.shape[0] % (2 * heads):
                raise ConfigError(f"{file.path}: tensor {tensor.name} has {tensor.shape[0]} rows for {heads} heads")
            self._orders[name] = interleaved(tensor.shape[0], heads)
        if self._delta is not None and tensor.shape:
            self._add_orders(name, tensor, self._delta, str(file.path))

    def _heads_of(self, module: str, layer: int) -> int:
        key = f"{self._architecture}.attention.head_count"
        heads = self._metadata.of_layer(key, layer, 1)
        return heads if module == "q_proj" else self._metadata.of_layer(f"{key}_kv", layer, heads)

    def _add_orders(self, name: str, tensor: GgufTensor, heads: DeltaHeads, source: str) -> None:
        stored = name_in_layer(tensor.name)
        if (kind := self._layout.row_orders.get(stored)) is not None:
            self._orders[name] = checked(reordered(kind, heads), tensor, tensor.shape[0], source).order
        if (kind := self._layout.column_orders.get(stored)) is not None:
            self._columns[name] = checked(reordered(kind, heads), tensor, tensor.shape[-1], source)

    def _add_part(self, file: GgufFile, name: str, tensor: GgufTensor, kind: Kind) -> None:
        assert self._delta is not None
        self._add(file, name, tensor, self._layout)
        found = checked(reordered(kind, self._delta), tensor, self.entries[name].shape[0], str(file.path))
        ends = self.entries[name].data_offsets[0], self.entries[name].data_offsets[0] + tensor.num_bytes // 2
        self._orders[name] = found.order
        self.entries[name] = TensorEntry(tensor.format.name, [found.rows, *tensor.shape[1:]], ends)

    def format_of(self, name: str) -> str:
        """The block format of tensor `name`; "" if there is none, or if its blocks have columns in another order."""
        if (stored := self._stored.get(name)) is None:
            return ""
        are_whole = name not in self._columns or self._columns[name].unit % stored.format.num_elements == 0
        return stored.format.name if are_whole else ""

    def scale_of_matrix(self, name: str) -> float:
        """By which the values of a matrix in NVFP4 are multiplied besides: 1, unless the file has such a tensor."""
        tensor, expert = self._scaled[name]
        scale = tensor.removesuffix(".weight") + SCALE
        if scale not in self._stored:
            return 1.0
        stored = self._stored[scale]
        if stored.format.name != "F32" or len(stored.shape) > 1 or stored.num_elements <= expert:
            raise ConfigError(
                f"{self._file_of[scale]}: tensor {scale} {list(stored.shape)} has the format {stored.format.name}; "
                f"{tensor} needs F32 and one element for each expert"
            )
        return float(self._floats(scale).view(-1)[expert])

    def _values(self, name: str, shape: tuple[int, ...], dim: int, span: slice) -> Tensor:
        if split := self._split.get(name):
            parts = (name.replace(WHOLE, each) for each in (KEYS_OF_LATENT, VALUES_OF_LATENT))
            both = [self._values(each, self._stored[each].shape, 0, slice(None)).to(self._dtype) for each in parts]
            joined = split.joined(*both)
            return joined[span] if dim == 0 else joined[:, span]
        start, stop, _ = span.indices(shape[dim])
        rows, order = self._rows(name, start if dim == 0 else 0, stop if dim == 0 else shape[0])
        if (columns := self._columns.get(name)) is not None:
            wanted = columns.order(torch.arange(0 if dim == 0 else start, shape[1] if dim == 0 else stop))
            is_float = self._stored[name].format.name in FLOAT_FORMATS
            return (self._floats(name)[rows] if is_float else self._dequantized(name, rows, 0, shape[1]))[:, wanted]
        if self._stored[name].format.name in FLOAT_FORMATS:
            values = self._floats(name)[rows]
            values = values if dim == 0 else values[:, start:stop]
            values = -values if name_in_layer(self._stored[name].name) in self._layout.negated else values
        else:
            values = self._dequantized(name, rows, 0 if dim == 0 else start, shape[1] if dim == 0 else stop)
        if order is not None:
            values = values[order]
        return values.float() - 1.0 if self._layout.norm_is_plus_1(self._stored[name].name) else values

    def blocks(self, name: str, shape: tuple[int, int], dim: int, start: int, stop: int) -> tuple[Tensor, int]:
        """The blocks of [start, stop) along `dim`: [rows, blocks, bytes] uint8; and the inputs before `start`."""
        self._check_and_count(name, shape, DEQUANTIZED_FORMATS)
        rows, order = self._rows(name, start if dim == 0 else 0, stop if dim == 0 else shape[0])
        first, last = (0, shape[1]) if dim == 0 else (start, stop)
        span, size = self._block_span(name, first, last), self._stored[name].format.num_elements
        if (columns := self._columns.get(name)) is not None:
            places = columns.order(torch.arange(span.start, span.stop) * size) // size
            found = self.raw_blocks(name)[rows][:, places]
        else:
            found = self.raw_blocks(name)[rows, span]
        return found if order is None else found[order], first - span.start * size

    def _rows(self, name: str, start: int, stop: int) -> tuple[slice, Tensor | None]:
        """Where the rows [start, stop) are in the file: the rows to read, and their order among these."""
        if name not in self._orders or start >= stop:
            return slice(start, stop), None
        places = self._orders[name](torch.arange(start, stop))
        first = int(places.min())
        return slice(first, int(places.max()) + 1), places - first

    def _floats(self, name: str) -> Tensor:
        dtype = DTYPES[self._stored[name].format.name]
        data = self._bytes(name)
        if data.data_ptr() % dtype.itemsize:
            data = data.clone()
        return data.view(dtype).view(self._stored[name].shape)

    def _dequantized(self, name: str, rows: slice, first: int, last: int) -> Tensor:
        """The values of `rows` and of the columns [first, last), in the model's dtype, all finite or ConfigError."""
        span, size = self._block_span(name, first, last), self._stored[name].format.num_elements
        raw = self.raw_blocks(name)[rows, span]
        dequantize, before = DEQUANTIZERS[self._stored[name].format.name], first - span.start * size
        values = torch.empty((len(raw), last - first), dtype=self._dtype)
        scale = self.scale_of_matrix(name) if self._stored[name].format.name == NVFP4 else 1.0
        step = max(1, ELEMENTS_AT_ONCE // max(1, raw.shape[1] * size))
        for at in range(0, len(raw), step):
            part = raw[at : at + step]
            found = dequantize(part.flatten(0, 1)).view(len(part), -1)[:, before : before + last - first]
            values[at : at + step] = converted(name, found if scale == 1.0 else found * scale, self._dtype)
        return values

    def _block_span(self, name: str, first: int, last: int) -> slice:
        """The blocks of a row that hold the columns [first, last)."""
        size = self._stored[name].format.num_elements
        return slice(first // size, -(-last // size))

    def raw_blocks(self, name: str) -> Tensor:
        """All blocks of a matrix in the mapped file: [rows, blocks, bytes] uint8."""
        stored = self._stored[name]
        rows, columns = stored.shape
        return self._bytes(name).view(rows, columns // stored.format.num_elements, stored.format.num_bytes)

    def _bytes(self, name: str) -> Tensor:
        """The tensor's bytes in the mapped file."""
        path, stored = self._file_of[name], self._stored[name]
        if path not in self._open:
            try:
                with path.open("rb") as file:
                    self._open[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{path} cannot be mapped: {error}") from error
        if len(self._open[path]) < stored.start + stored.num_bytes:
            raise ConfigError(f"{path} became shorter while it was read; download it again")
        return torch.frombuffer(self._open[path], dtype=torch.uint8, count=stored.num_bytes, offset=stored.start)
