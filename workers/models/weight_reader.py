"""Reads this rank's share of a checkpoint, tensor by tensor, in the forms that the backend accepts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..checkpoint.conversion import check_finite, converted
from ..checkpoint.geometry import Geometry
from ..checkpoint.matrix_reader import MatrixPart, MatrixReader
from ..checkpoint.safetensors_files import Checkpoint
from ..checkpoint.weight_forms import (
    GroupedWeight,
    OutputScaledWeight,
    Weight,
    float_values,
    on_device,
    with_rows,
)
from ..distributed.tensor_parallel import TensorParallelGroup
from ..layers.backend import Backend, PackingBackend
from ..quantization.source import MatrixSource
from .families.family import WeightNames
from .matrix_rows import Rows, Span
from .packed_cache import PackedReader, PackedStore


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
    ):
        self._checkpoint = checkpoint
        self._source = source
        self._names = names
        self._geometry = geometry
        self._group = group
        self._backend = backend
        self._device = backend.device
        self._on_progress = on_progress
        self._store = store  # reads packed weights from a file or writes them to one; None: neither
        self._loaded_bytes = 0

    def _bias(self, parts: list[Rows]) -> Tensor:
        """The biases of the given rows of several projections, as one vector."""
        return self._tensor(f"{parts[0].name}.bias", lambda: self._read_bias(parts))

    def _read_bias(self, parts: list[Rows]) -> Tensor:
        vector, at = self._empty(sum(map(len, parts))), 0
        for rows in parts:
            here = slice(at, at + len(rows))
            self._read(f"{rows.name}.bias", rows, vector[here])
            at = here.stop
        return vector

    def _weights(self, name: str, read: Callable[[], Sequence[Weight]], *, is_share: bool = False) -> Sequence[Weight]:
        """The weights of one product: as read, or, with a store, packed now or in an earlier start."""
        if self._store is None:
            return read()
        backend, num_ranks = self._backend, self._group.size if is_share else None
        assert isinstance(backend, PackingBackend)
        weights = self._store.weights(name, lambda: [backend.packed(weight, num_ranks) for weight in read()])
        self._stored()
        return weights

    def _tensor(self, name: str, read: Callable[[], Tensor]) -> Tensor:
        return read() if self._store is None else self._store.tensor(name, read)

    def _stored(self) -> None:
        if isinstance(self._store, PackedReader):
            total = self._checkpoint.total_bytes
            self._on_progress(total * self._store.read_bytes // self._store.total_bytes, total)

    def _rows(self, reader: MatrixReader, rows: Rows, columns: int) -> Weight:
        return self._matrix(reader, rows.name, MatrixPart((rows.total, columns), 0, *rows.span), rows.order)

    def _matrix(self, reader: MatrixReader, name: str, part: MatrixPart, order: Tensor | None = None) -> Weight:
        read = reader.read(name, part)
        if order is not None:
            read = with_rows(read, order)
        weight, held = self._held(f"{name}.weight", read)
        self._source.report.count(read, weight)
        self._loaded(weight.nbytes)
        return held

    def _held(self, name: str, read: Weight) -> tuple[Weight, Weight]:
        """`read` in a form that the backend accepts, and the same on the device. Raises ConfigError if not finite.

        Weights that the backend packs are checked while they are packed.
        """
        if isinstance(read, GroupedWeight | OutputScaledWeight):
            scales = read.scales
            check_finite(f"{name} (its scales)", scales, lambda: scales)
        weight = self._backend.accepted(read, self._geometry.dtype)
        held = on_device(weight, self._device)
        if isinstance(held, Tensor):
            check_finite(name, held, lambda: float_values(read))
        return weight, held

    def _vector(self, name: str, size: int) -> Tensor:
        return self._tensor(name, lambda: self._read_vector(name, size))

    def _read_vector(self, name: str, size: int) -> Tensor:
        vector = self._empty(size)
        self._read(name, Rows(name, size, (0, size)), vector)
        return vector

    def _even_span(self, rows: int) -> Span:
        share = rows // self._group.size
        return self._group.rank * share, (self._group.rank + 1) * share

    def _kv_heads(self) -> Span:
        """This rank's KV heads. If there are more ranks than KV heads, adjacent ranks hold the same head."""
        first = self._group.rank * self._geometry.num_kv_heads // self._group.size
        return first, first + self._geometry.kv_heads_of_rank(self._group.size)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._geometry.dtype, device=self._device)

    def _read(self, name: str, rows: Rows, into: Tensor) -> None:
        """Read `rows` of the vector `name` into `into`."""
        found = self._checkpoint.read(name, (rows.total,), 0, *rows.span)
        into.copy_(converted(name, found if rows.order is None else found[rows.order], into.dtype))
        self._loaded(into.nbytes)

    def _loaded(self, num_bytes: int) -> None:
        self._loaded_bytes += num_bytes
        self._on_progress(self._checkpoint.read_bytes, self._checkpoint.total_bytes)
