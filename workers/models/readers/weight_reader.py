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
from ...geometry.model_options import RMS_NORMS, NormKind
from ...layers.adapters.sites import Adapters
from ...layers.backend import Backend, PackingBackend
from ...layers.linear import JoinedLinear, Linear
from ...layers.norm import LayerNorm, Norm, RMSNorm
from ...quantization.source import MatrixSource
from ..matrix_rows import Rows, Span, order_of_head
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
        self._checkpoint = checkpoint
        self._source = source
        self._names = names
        self._geometry = geometry
        self._group = group
        self._backend = backend
        self._device = backend.device
        self._on_progress = on_progress
        self._store = store  # reads packed weights from a file or writes them to one; None: neither
        self._adapters = adapters  # None: requests cannot use LoRA adapters
        self._loaded_bytes = 0

    def _bias(self, parts: list[Rows], name: str = "") -> Tensor:
        """The biases of the given rows of several projections, as one vector; `name` as in _column_parallel."""
        return self._tensor(f"{name or parts[0].name}.bias", lambda: self._read_bias(parts))

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
        elif isinstance(held, Fp8Weight) and not are_numbers(held.codes):
            check_finite(name, float_values(read), lambda: float_values(read))
        return weight, held

    def _vector(self, name: str, size: int) -> Tensor:
        return self._tensor(name, lambda: self._read_vector(name, size))

    def _read_vector(self, name: str, size: int) -> Tensor:
        vector = self._empty(size)
        self._read(name, Rows(name, size, (0, size)), vector)
        return vector

    def _product(self, weights: Sequence[Weight], bias: Tensor | None) -> Linear:
        if len(weights) == 1:
            return self._backend.linear(weights[0], bias)
        products, at = [], 0
        for weight in weights:
            here = slice(at, at + weight.shape[0])
            products.append(self._backend.linear(weight, None if bias is None else bias[here].contiguous()))
            at = here.stop
        return JoinedLinear(products)

    def _even_span(self, rows: int) -> Span:
        share = rows // self._group.size
        return self._group.rank * share, (self._group.rank + 1) * share

    def _kv_heads(self, index: int) -> Span:
        """This rank's KV heads. If there are more ranks than KV heads, adjacent ranks hold the same head."""
        geometry = self._geometry.of_layer(index)
        first = self._group.rank * geometry.num_kv_heads // self._group.size
        return first, first + geometry.kv_heads_of_rank(self._group.size)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._geometry.dtype, device=self._device)

    def _read(self, name: str, rows: Rows, into: Tensor) -> None:
        """Read `rows` of the vector `name` into `into`."""
        found = self._checkpoint.read(name, (rows.total,), 0, *rows.span)
        into.copy_(converted(name, found if rows.order is None else found[rows.order], into.dtype))
        self._loaded(into.nbytes)

    def _read_tensor(
        self, name: str, shape: tuple[int, ...], rows: Span | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor of that shape, or some of its rows, in the model's dtype or another."""
        found = self._checkpoint.read(name, shape, 0, *(rows or (0, None)))
        held = converted(name, found, dtype or self._geometry.dtype).to(self._device)
        self._loaded(held.nbytes)
        return held

    def _table_rows(self, name: str, shape: tuple[int, int], span: Span, rows: int) -> Weight:
        """The rows `span` of a float table, with zeros up to `rows` rows."""
        return self._table_of(name, self._checkpoint.read(name, shape, 0, *span), rows)

    def _table_part(self, name: str, part: MatrixPart, rows: int) -> Weight:
        """Rows of a table in the checkpoint's form, which may be blocks, with zeros up to `rows` rows."""
        stored = self._source.tables.read(name.removesuffix(".weight"), part)
        self._loaded(stored.nbytes)
        _, held = self._held(name, with_outputs(stored, rows))
        if isinstance(held, BlockWeight):
            self._source.report.count(stored, held)
        return held

    def _table_of(self, name: str, found: Tensor, rows: int) -> Weight:
        stored = StoredWeight((found,), self._geometry.dtype)
        self._loaded(stored.nbytes)
        _, held = self._held(name, with_outputs(stored, rows))
        return held

    def _vocabulary_rows(self) -> tuple[int, Span]:
        """The number of rows per rank, and this rank's span in the checkpoint; the last spans may be short or empty."""
        vocab = self._geometry.vocab_size
        rows = -(-vocab // (self._group.size * VOCABULARY_MULTIPLE)) * VOCABULARY_MULTIPLE
        return rows, (min(self._group.rank * rows, vocab), min((self._group.rank + 1) * rows, vocab))

    def _head_bias(self, name: str) -> Tensor:
        """This rank's rows of the output head's bias, with zeros past the vocabulary's end."""
        rows, span = self._vocabulary_rows()
        found = self._bias([Rows(name, self._geometry.vocab_size, span)])
        return torch.cat([found, found.new_zeros(rows - len(found))])

    def _loaded(self, num_bytes: int) -> None:
        self._loaded_bytes += num_bytes
        self._on_progress(self._checkpoint.read_bytes, self._checkpoint.total_bytes)


class NormReader(WeightReader):
    """Reads norms as well: of whole vectors, and of query and key heads."""

    def _norm(self, name: str, size: int, multiplier: float = 1.0) -> Norm:
        """A norm of the family's kind; `multiplier` is folded into its weight and bias."""
        kind = self._geometry.norm
        if kind in ("rms", "rms_less_1"):
            return self._rms_norm(name, size, multiplier)
        is_plain = kind in ("plain_rms", "plain_layer")
        weight = torch.ones(size, device=self._device) if is_plain else self._vector(name, size).float()
        bias = self._vector(_bias_of(name), size).float() * multiplier if kind in ("layer", "layer_less_1") else None
        return self._norm_of(kind, weight, bias, multiplier)

    def _norm_if_named(self, name: str, index: int) -> Norm | None:
        return self._norm(name.format(index), self._geometry.hidden_size) if name else None

    def _rms_norm(self, name: str, size: int, multiplier: float = 1.0) -> RMSNorm:
        weight = self._vector(name, size).float()
        if self._geometry.norm == "rms_less_1":
            weight = weight + 1.0
        return RMSNorm(weight * multiplier, self._geometry.norm_eps)

    def _whole_norm(self, name: str, size: int) -> RMSNorm:
        """Of all heads together; its weight is permuted like each head's elements (order_of_head)."""
        norm, order = self._rms_norm(name, size), order_of_head(self._geometry, 0).to(self._device)
        return RMSNorm(norm.weight.view(-1, len(order))[:, order].flatten(), norm.eps)

    def _norm_of(self, kind: NormKind, weight: Tensor, bias: Tensor | None, multiplier: float = 1.0) -> Norm:
        """Of weights as the file has them."""
        if kind in ("rms_less_1", "layer_less_1"):
            weight = weight + 1.0
        eps = self._geometry.norm_eps
        return RMSNorm(weight * multiplier, eps) if kind in RMS_NORMS else LayerNorm(weight * multiplier, bias, eps)

    def _head_norms(self, index: int) -> tuple[Norm | None, Norm | None]:
        """The norms of each query head and of each key head; None: the layer has none."""
        geometry, names = self._geometry.of_layer(index), self._names
        if (kind := geometry.head_norm(index)) is None:
            return None, None
        heads = geometry.num_heads, self._even_span(geometry.num_heads)
        queries = self._head_norm(kind, names.query_norm, index, *heads)
        if geometry.kv_source(index) != index:
            return queries, None
        return queries, self._head_norm(kind, names.key_norm, index, geometry.num_kv_heads, self._kv_heads(index))

    def _query_factors(self, index: int) -> Tensor:
        """The weights of norms after the rotation. A score is a sum of products, so queries take those of keys too."""
        names, order = (self._names.query_norm, self._names.key_norm), order_of_head(self._geometry, index)
        query, key = (self._vector(name.format(index), len(order)).float() for name in names)
        start, stop = self._even_span(self._geometry.num_heads)
        return (query * key)[order.to(self._device)].repeat(stop - start)

    def _head_norm(self, kind: NormKind, name: str, index: int, num_heads: int, heads: Span) -> Norm:
        """Of `heads` out of `num_heads`; its vectors are permuted like the heads' elements (order_of_head)."""
        geometry = self._geometry.of_layer(index)
        order = order_of_head(geometry, index)
        if kind == "plain_rms":
            return self._norm_of(kind, torch.ones(geometry.head_dim, device=self._device), None)

        def read(name: str) -> Tensor:
            found = self._head_vectors(name, index, num_heads, heads)
            return found.float()[..., order.to(found.device)].contiguous()

        return self._norm_of(kind, read(name), read(_bias_of(name)) if kind == "layer" else None)

    def _head_vectors(self, name: str, index: int, num_heads: int, heads: Span) -> Tensor:
        """[head_dim]; with other weights for each head [heads, head_dim], from one matrix or a vector a head."""
        head_dim = self._geometry.of_layer(index).head_dim
        if not (norm := self._geometry.qk_norm) or not norm.has_weights_per_head:
            return self._vector(name.format(index), head_dim)
        if name.count("{}") == 2:
            every = [self._vector(name.format(index, head), head_dim) for head in range(num_heads)]
            return torch.stack(every[slice(*heads)])
        name = name.format(index)
        return self._tensor(name, lambda: self._read_tensor(name, (num_heads, head_dim), heads))


def _bias_of(name: str) -> str:
    return f"{name.removesuffix('.weight')}.bias"
