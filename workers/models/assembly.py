"""Reads this rank's share of a checkpoint and puts the decoder together."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..backend import Backend
from ..layers.embedding import OutputHead, VocabularyEmbedding
from ..layers.linear import OUTPUTS_MULTIPLE, Linear, RowParallelLinear
from ..layers.norm import RMSNorm
from ..layers.ops import Heads
from ..layers.rotary import Rotary
from ..tensor_parallel import TensorParallelGroup
from ..weights import Checkpoint, check_names
from .decoder import DecoderLayer, Model
from .family import WeightNames
from .geometry import Geometry

Span = tuple[int, int]  # rows [start, stop) of a weight


class Assembly:
    """One load: what was read so far, and how to share each kind of weight among the ranks."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: WeightNames,
        geometry: Geometry,
        group: TensorParallelGroup,
        backend: Backend,
        on_progress: Callable[[int, int], None],
    ):
        self._checkpoint = checkpoint
        self._names = names
        self._geometry = geometry
        self._group = group
        self._backend = backend
        self._device = backend.device
        self._on_progress = on_progress
        self._used: set[str] = set()
        self._loaded_bytes = 0
        self._total_bytes = self._expected_bytes()

    def model(self) -> Model:
        """Raises ConfigError naming a tensor that is missing, misshapen or unexplained."""
        geometry, names, group = self._geometry, self._names, self._group
        embedding, head = self._vocabulary()
        layers = [self._layer(index) for index in range(geometry.num_layers)]
        final_norm = self._norm(names.final_norm, geometry.hidden_size)
        tied = (names.output_head,) if geometry.tie_word_embeddings else ()
        check_names(self._checkpoint, self._used, (*names.unused, *tied))
        return Model(
            geometry=geometry,
            tp_size=group.size,
            device=self._device,
            embedding=embedding,
            layers=layers,
            final_norm=final_norm,
            output_head=head,
            ops=self._backend.ops(self._heads()),
            attention=self._backend.attention(),
            weights_bytes=self._loaded_bytes,
        )

    def _vocabulary(self) -> tuple[VocabularyEmbedding, OutputHead]:
        geometry, names, backend = self._geometry, self._names, self._backend
        weight = self._vocabulary_table(names.embedding)
        if geometry.tie_word_embeddings:
            tied = backend.tied_table(weight)
            return VocabularyEmbedding(tied, self._group), OutputHead(tied, geometry.vocab_size, self._group)
        embedding = VocabularyEmbedding(backend.table(weight), self._group)
        head = backend.head(self._vocabulary_table(names.output_head))
        return embedding, OutputHead(head, geometry.vocab_size, self._group)

    def _heads(self) -> Heads:
        geometry, size = self._geometry, self._group.size
        rotary = Rotary(geometry.rope, geometry.head_dim, self._device)
        return Heads(geometry.heads_of_rank(size), geometry.kv_heads_of_rank(size), geometry.head_dim, rotary)

    def _layer(self, index: int) -> DecoderLayer:
        geometry, names = self._geometry, self._names
        hidden, head_dim = geometry.hidden_size, geometry.head_dim
        query_rows, kv_rows = geometry.num_heads * head_dim, geometry.num_kv_heads * head_dim
        queries, keys = self._even_span(query_rows), self._kv_span()
        ffn = self._even_span(geometry.intermediate_size)
        query, key, value = (name.format(index) for name in (names.query, names.key, names.value))
        gate, up = names.gate.format(index), names.up.format(index)
        qkv = [(query, query_rows, queries), (key, kv_rows, keys), (value, kv_rows, keys)]
        gate_up = [(gate, geometry.intermediate_size, ffn), (up, geometry.intermediate_size, ffn)]
        norms = geometry.qk_norm
        return DecoderLayer(
            attention_norm=self._norm(names.attention_norm.format(index), hidden),
            qkv=self._column_parallel(qkv, hidden, geometry.qkv_bias),
            query_norm=self._norm(names.query_norm.format(index), head_dim) if norms else None,
            key_norm=self._norm(names.key_norm.format(index), head_dim) if norms else None,
            output=self._row_parallel(names.output.format(index), hidden, query_rows, geometry.output_bias),
            mlp_norm=self._norm(names.mlp_norm.format(index), hidden),
            gate_up=self._column_parallel(gate_up, hidden, geometry.mlp_bias),
            down=self._row_parallel(names.down.format(index), hidden, geometry.intermediate_size, geometry.mlp_bias),
            window=geometry.sliding_windows[index],
        )

    def _column_parallel(self, parts: list[tuple[str, int, Span]], columns: int, bias: bool) -> Linear:
        """Fuses the given spans of several projections, each (name, rows in the file, span), into one."""
        rows = sum(stop - start for _, _, (start, stop) in parts)
        weight = self._empty(rows, columns)
        bias_vector = self._empty(rows) if bias else None
        at = 0
        for name, rows_in_file, (start, stop) in parts:
            here = slice(at, at + stop - start)
            self._read(f"{name}.weight", (rows_in_file, columns), weight[here], 0, start, stop)
            if bias_vector is not None:
                self._read(f"{name}.bias", (rows_in_file,), bias_vector[here], 0, start, stop)
            at = here.stop
        return self._backend.linear(weight, bias_vector)

    def _row_parallel(self, name: str, rows: int, columns: int, bias: bool) -> Linear:
        start, stop = self._even_span(columns)
        weight = self._empty(rows, stop - start)
        self._read(f"{name}.weight", (rows, columns), weight, 1, start, stop)
        bias_vector = None
        if bias:
            bias_vector = self._empty(rows)
            self._read(f"{name}.bias", (rows,), bias_vector)
        if self._group.size == 1:
            return self._backend.linear(weight, bias_vector)
        return RowParallelLinear(self._backend.linear(weight), bias_vector, self._group)

    def _vocabulary_table(self, name: str) -> Tensor:
        """This rank's rows, with zeros past the vocabulary's end."""
        vocab, hidden = self._geometry.vocab_size, self._geometry.hidden_size
        rows = -(-vocab // (self._group.size * OUTPUTS_MULTIPLE)) * OUTPUTS_MULTIPLE
        start, stop = self._group.rank * rows, min((self._group.rank + 1) * rows, vocab)
        table = self._empty(rows, hidden)
        table[max(0, stop - start) :] = 0
        if start < stop:
            self._read(name, (vocab, hidden), table[: stop - start], 0, start, stop)
        self._used.add(name)
        return table

    def _norm(self, name: str, size: int) -> RMSNorm:
        weight = self._empty(size)
        self._read(name, (size,), weight)
        return RMSNorm(weight, self._geometry.rms_norm_eps)

    def _even_span(self, rows: int) -> Span:
        share = rows // self._group.size
        return self._group.rank * share, (self._group.rank + 1) * share

    def _kv_span(self) -> Span:
        """With more ranks than KV heads, neighbouring ranks hold the same head."""
        head_dim, kv_heads = self._geometry.head_dim, self._geometry.num_kv_heads
        first = self._group.rank * kv_heads // self._group.size
        return first * head_dim, (first + self._geometry.kv_heads_of_rank(self._group.size)) * head_dim

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._geometry.dtype, device=self._device)

    def _read(
        self, name: str, shape: tuple[int, ...], into: Tensor, dim: int = 0, start: int = 0, stop: int | None = None
    ) -> None:
        into.copy_(self._checkpoint.read(name, shape, dim, start, stop))
        self._used.add(name)
        self._loaded_bytes += into.nbytes
        self._on_progress(self._loaded_bytes, max(self._total_bytes, self._loaded_bytes))

    def _expected_bytes(self) -> int:
        """What this rank will hold, to within what is not split evenly."""
        elements = sum(math.prod(entry.shape) for entry in self._checkpoint.entries.values())
        return elements * self._geometry.dtype.itemsize // self._group.size
