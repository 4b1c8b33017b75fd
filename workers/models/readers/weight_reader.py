"""Reads this rank's share of a checkpoint, tensor by tensor, in the forms that the backend accepts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...checkpoint.blocks.block_weight import BlockWeight
from ...checkpoint.blocks.fp8_codes import are_numbers
from ...checkpoint.conversion import check_finite, converted
from ...checkpoint.matrix_reader import MatrixPart, MatrixReader
from ...checkpoint.safetensors_files import Checkpoint
from ...checkpoint.weight_forms import (
    Fp8Weight,
    GroupedWeight,
    OutputScaledWeight,
    StoredWeight,
    Weight,
    float_values,
    on_device,
    with_outputs,
    with_rows,
)
from ...distributed.tensor_parallel import TensorParallelGroup
from ...geometry.geometry import Geometry
from ...layers.adapters.sites import Adapters
from ...layers.backend import Backend, PackingBackend
from ...layers.linear import JoinedLinear, Linear
from ...quantization.source import MatrixSource
from ..matrix_rows import Rows, Span
from ..names.weight_names import WeightNames
from ..packed_weights.cache import PackedReader, PackedStore

VOCABULARY_MULTIPLE = 16  # rows; tables, and each rank's share of the vocabulary, are padded to whole vectors


class WeightReader:
    """Reads this rank's part of each weight, and reports progress."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        source: MatrixSource,
        names: WeightNames,
        geometry: Geometry,
        group: TensorParallelGroup,
        backend: Backend,
        on_progress: Callable[[int, int], None],
        store: PackedStore | None = None,
        adapters: Adapters | None = None,
    ):
        self.checkpoint = checkpoint
        self.source = source
        self.names = names
        self.geometry = geometry
        self.group = group
        self.backend = backend
        self.device = backend.device
        self.on_progress = on_progress
        self.store = store  # reads packed weights from a file or writes them to one; None: neither
        self.adapters = adapters  # None: requests cannot use LoRA adapters
        self.loaded_bytes = 0

    def bias(self, parts: list[Rows], name: str = "") -> Tensor:
        """The biases of the given rows of several projections, as one vector. `name`: as in LayerReader."""
        return self.tensor(f"{name or parts[0].name}.bias", lambda: self._read_bias(parts))

    def _read_bias(self, parts: list[Rows]) -> Tensor:
        vector, at = self._empty(sum(map(len, parts))), 0
        for rows in parts:
            here = slice(at, at + len(rows))
            self._read(f"{rows.name}.bias", rows, vector[here])
            at = here.stop
        return vector

    def weights(self, name: str, read: Callable[[], Sequence[Weight]], *, is_share: bool = False) -> Sequence[Weight]:
        """The weights of one product: as read, or, with a store, packed now or in an earlier start."""
        if self.store is None:
            return read()
        backend, num_ranks = self.backend, self.group.size if is_share else None
        assert isinstance(backend, PackingBackend)
        weights = self.store.weights(name, lambda: [backend.packed(weight, num_ranks) for weight in read()])
        self._stored()
        return weights

    def tensor(self, name: str, read: Callable[[], Tensor]) -> Tensor:
        return read() if self.store is None else self.store.tensor(name, read)

    def _stored(self) -> None:
        if isinstance(self.store, PackedReader):
            total = self.checkpoint.total_bytes
            self.on_progress(total * self.store.read_bytes // self.store.total_bytes, total)

    def rows(self, reader: MatrixReader, rows: Rows, columns: int) -> Weight:
        return self.matrix(reader, rows.name, MatrixPart((rows.total, columns), 0, *rows.span), rows.order)

    def matrix(self, reader: MatrixReader, name: str, part: MatrixPart, order: Tensor | None = None) -> Weight:
        read = reader.read(name, part)
        if order is not None:
            read = with_rows(read, order)
        weight, held = self._held(f"{name}.weight", read)
        self.source.report.count(read, weight)
        self.loaded(weight.nbytes)
        return held

    def _held(self, name: str, read: Weight) -> tuple[Weight, Weight]:
        """`read` in a form that the backend accepts, and the same on the device. Raises ConfigError if not finite.

        Weights that the backend packs are checked while they are packed.
        """
        if isinstance(read, GroupedWeight | OutputScaledWeight):
            scales = read.scales
            check_finite(f"{name} (its scales)", scales, lambda: scales)
        weight = self.backend.accepted(read, self.geometry.dtype)
        held = on_device(weight, self.device)
        if isinstance(held, Tensor):
            check_finite(name, held, lambda: float_values(read))
        elif isinstance(held, Fp8Weight) and not are_numbers(held.codes):
            check_finite(name, float_values(read), lambda: float_values(read))
        return weight, held

    def vector(self, name: str, size: int) -> Tensor:
        return self.tensor(name, lambda: self._read_vector(name, size))

    def _read_vector(self, name: str, size: int) -> Tensor:
        vector = self._empty(size)
        self._read(name, Rows(name, size, (0, size)), vector)
        return vector

    def product(self, weights: Sequence[Weight], bias: Tensor | None) -> Linear:
        if len(weights) == 1:
            return self.backend.linear(weights[0], bias)
        products, at = [], 0
        for weight in weights:
            here = slice(at, at + weight.shape[0])
            products.append(self.backend.linear(weight, None if bias is None else bias[here].contiguous()))
            at = here.stop
        return JoinedLinear(products)

    def even_span(self, rows: int) -> Span:
        share = rows // self.group.size
        return self.group.rank * share, (self.group.rank + 1) * share

    def kv_heads(self, index: int) -> Span:
        """This rank's KV heads. If there are more ranks than KV heads, adjacent ranks hold the same head."""
        geometry = self.geometry.of_layer(index)
        first = self.group.rank * geometry.num_kv_heads // self.group.size
        return first, first + geometry.kv_heads_of_rank(self.group.size)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.geometry.dtype, device=self.device)

    def _read(self, name: str, rows: Rows, into: Tensor) -> None:
        """Read `rows` of the vector `name` into `into`."""
        found = self.checkpoint.read(name, (rows.total,), 0, *rows.span)
        into.copy_(converted(name, found if rows.order is None else found[rows.order], into.dtype))
        self.loaded(into.nbytes)

    def read_tensor(
        self, name: str, shape: tuple[int, ...], rows: Span | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor of that shape, or some of its rows, in the model's dtype or another."""
        found = self.checkpoint.read(name, shape, 0, *(rows or (0, None)))
        held = converted(name, found, dtype or self.geometry.dtype).to(self.device)
        self.loaded(held.nbytes)
        return held

    def table_rows(self, name: str, shape: tuple[int, int], span: Span, rows: int) -> Weight:
        """The rows `span` of a float table, with zeros up to `rows` rows."""
        return self.table_of(name, self.checkpoint.read(name, shape, 0, *span), rows)

    def table_part(self, name: str, part: MatrixPart, rows: int) -> Weight:
        """Rows of a table in the checkpoint's form, which may be blocks, with zeros up to `rows` rows."""
        stored = self.source.tables.read(name.removesuffix(".weight"), part)
        self.loaded(stored.nbytes)
        _, held = self._held(name, with_outputs(stored, rows))
        if isinstance(held, BlockWeight):
            self.source.report.count(stored, held)
        return held

    def table_of(self, name: str, found: Tensor, rows: int) -> Weight:
        stored = StoredWeight((found,), self.geometry.dtype)
        self.loaded(stored.nbytes)
        _, held = self._held(name, with_outputs(stored, rows))
        return held

    def vocabulary_rows(self) -> tuple[int, Span]:
        """The number of rows per rank, and this rank's span in the checkpoint; the last spans may be short or empty."""
        vocab = self.geometry.vocab_size
        rows = -(-vocab // (self.group.size * VOCABULARY_MULTIPLE)) * VOCABULARY_MULTIPLE
        return rows, (min(self.group.rank * rows, vocab), min((self.group.rank + 1) * rows, vocab))

    def head_bias(self, name: str) -> Tensor:
        """This rank's rows of the output head's bias, with zeros past the vocabulary's end."""
        rows, span = self.vocabulary_rows()
        found = self.bias([Rows(name, self.geometry.vocab_size, span)])
        return torch.cat([found, found.new_zeros(rows - len(found))])

    def loaded(self, num_bytes: int) -> None:
        self.loaded_bytes += num_bytes
        self.on_progress(self.checkpoint.read_bytes, self.checkpoint.total_bytes)
