"""Puts the decoder together from this rank's share of a checkpoint."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..checkpoint.attention_options import AttentionOptions, alibi_slopes
from ..checkpoint.matrix_reader import MatrixPart
from ..checkpoint.safetensors_files import check_names
from ..checkpoint.weight_forms import (
    StoredWeight,
    Weight,
    joined,
    with_outputs,
)
from ..distributed.allocator import release_freed_memory
from ..layers.embedding import OutputHead, Table, VocabularyEmbedding
from ..layers.linear import JoinedLinear, Linear
from ..layers.norm import LayerNorm, Norm, RMSNorm
from ..layers.ops import HeadLayout
from ..layers.rotary import Rotary
from ..quantization.gptq import skip_zero_biases
from .decoder import DecoderLayer, Model
from .packed_cache import PackedReader, PackedWriter
from .weight_reader import Span, WeightReader

log = logging.getLogger(__name__)

VOCABULARY_MULTIPLE = 16  # a rank's share of the vocabulary is whole vectors


class Assembly(WeightReader):
    """How each kind of weight is shared among the ranks."""

    def model(self) -> Model:
        """Raises ConfigError naming a tensor that is missing, misshapen or unexplained."""
        geometry, names, group = self._geometry, self._names, self._group
        embedding, head = self._vocabulary()
        embedding_norm = self._norm_if_named(names.embedding_norm, 0)
        positions = self._positions() if geometry.learned_positions else None
        layers = [self._layer(index) for index in range(geometry.num_layers)]
        final_norm = self._norm(names.final_norm, geometry.hidden_size, geometry.multipliers.logits)
        tied = (names.output_head,) if geometry.tie_word_embeddings else ()
        facts = self._finish((*names.unused, *tied))
        self._on_progress(self._checkpoint.total_bytes, self._checkpoint.total_bytes)
        heads = self._heads()
        attention = self._backend.attention(heads)
        return Model(
            geometry=replace(geometry, head_multiple=attention.head_multiple),
            tp_size=group.size,
            backend=self._backend,
            embedding=embedding,
            embedding_norm=embedding_norm,
            positions=positions,
            layers=layers,
            final_norm=final_norm,
            output_head=head,
            ops=self._backend.ops(heads),
            attention=attention,
            weights_bytes=self._loaded_bytes,
            quantization=facts,
        )

    def _finish(self, unused: tuple[str, ...]) -> dict[str, str]:
        """What quantization did. Raises ConfigError when the checkpoint holds what the model has no place for."""
        if isinstance(self._store, PackedReader):
            self._loaded_bytes = self._store.record.weights_bytes
            return self._store.record.facts
        skip_zero_biases(self._checkpoint)
        check_names(self._checkpoint, unused)
        facts = self._source.report.facts()
        if isinstance(self._store, PackedWriter):
            self._store.commit(self._loaded_bytes, facts)
        return facts

    def _vocabulary(self) -> tuple[VocabularyEmbedding, OutputHead]:
        geometry, names, backend = self._geometry, self._names, self._backend
        (weight,) = self._weights(names.embedding, lambda: [self._vocabulary_table(names.embedding)])
        is_tied = geometry.tie_word_embeddings and not self._has_own_head()
        if is_tied and not self._source.quantizes_head:
            tied = backend.tied_table(weight, geometry.multipliers.embedding)
            return VocabularyEmbedding(tied, self._group), OutputHead(tied, geometry.vocab_size, self._group)
        table = backend.table(weight, multiplier=geometry.multipliers.embedding)
        embedding = VocabularyEmbedding(table, self._group)
        head_name = names.embedding if is_tied else names.output_head
        (matrix,) = self._weights("head", lambda: [self._head_matrix(head_name)])
        head = backend.head(matrix)
        return embedding, OutputHead(head, geometry.vocab_size, self._group)

    def _has_own_head(self) -> bool:
        """Whether a model whose config.json ties its head to the embedding comes with another head all the same.

        As transformers has it, the file's is the model's then. Ranks look at their own rows: where these are equal,
        either matrix is right.
        """
        name, embedding = self._names.output_head, self._names.embedding
        if name not in self._checkpoint.entries:
            return False
        if isinstance(self._store, PackedReader):
            has_own = "head" in self._store.record.weights and not self._source.quantizes_head
        else:
            shape, dtype = (self._geometry.vocab_size, self._geometry.hidden_size), self._geometry.dtype
            _, rows = self._vocabulary_rows()
            one, other = (self._checkpoint.read(n, shape, 0, *rows).to(dtype) for n in (name, embedding))
            has_own = not torch.equal(one, other)
        if has_own:
            log.warning(
                "tensor %s differs from %s, to which config.json ties it (tie_word_embeddings=true): it is used as the "
                "output head all the same, as transformers does; tie_word_embeddings=false in config.json says so",
                name,
                embedding,
            )
        return has_own

    def _heads(self) -> HeadLayout:
        geometry, size = self._geometry, self._group.size
        rotaries = {rope: Rotary(rope, geometry.head_dim, self._device) for rope in geometry.ropes}
        heads = geometry.heads_of_rank(size), geometry.kv_heads_of_rank(size), geometry.head_dim
        return HeadLayout(*heads, tuple(rotaries[rope] for rope in geometry.ropes))

    def _layer(self, index: int) -> DecoderLayer:
        geometry, names = self._geometry, self._names
        hidden, head_dim = geometry.hidden_size, geometry.head_dim
        query_rows, kv_rows = geometry.num_heads * head_dim, geometry.num_kv_heads * head_dim
        queries, keys = self._even_span(query_rows), self._kv_span()
        ffn = self._even_span(geometry.intermediate_size)
        query, key, value = (name.format(index) for name in (names.query, names.key, names.value))
        gate, up = names.gate.format(index), names.up.format(index)
        qkv = [(query, query_rows, queries), (key, kv_rows, keys), (value, kv_rows, keys)]
        if query == key == value:
            qkv = by_head(qkv, head_dim) if names.are_grouped else stacked(qkv)
        into = (gate, up) if geometry.activation.is_gated else (up,)
        gate_up = [(name, geometry.intermediate_size, ffn) for name in into]
        if gate == up:
            gate_up = stacked(gate_up)
        norms = geometry.qk_norm
        self._checkpoint.close()  # the kernel counts its pages as ours as long as it is mapped
        release_freed_memory()
        return DecoderLayer(
            attention_norm=self._norm(names.attention_norm.format(index), hidden),
            qkv=self._column_parallel(qkv, hidden, geometry.qkv_bias),
            query_norm=self._rms_norm(names.query_norm.format(index), head_dim) if norms else None,
            key_norm=self._rms_norm(names.key_norm.format(index), head_dim) if norms else None,
            output=self._row_parallel(names.output.format(index), hidden, query_rows, geometry.output_bias),
            attention_out_norm=self._norm_if_named(names.attention_out_norm, index),
            mlp_norm=self._norm(names.mlp_norm.format(index), hidden),
            gate_up=self._column_parallel(gate_up, hidden, geometry.mlp_bias),
            down=self._row_parallel(names.down.format(index), hidden, geometry.intermediate_size, geometry.mlp_bias),
            mlp_out_norm=self._norm_if_named(names.mlp_out_norm, index),
            attention=self._attention_options(index),
        )

    def _attention_options(self, index: int) -> AttentionOptions:
        geometry, slopes = self._geometry, None
        if geometry.has_alibi:
            first, end = self._even_span(geometry.num_heads)
            slopes = alibi_slopes(geometry.num_heads)[first:end].to(self._device)
        return AttentionOptions(geometry.scale, geometry.sliding_windows[index], geometry.scores_cap, slopes)

    def _column_parallel(self, parts: list[tuple[str, int, Span]], columns: int, bias: bool) -> Linear:
        """Fuses the given spans of several projections, each (name, rows in the file, span), into one."""
        weights = self._weights(
            parts[0][0],
            lambda: joined(
                [
                    self._matrix(self._source.projections, name, MatrixPart((rows, columns), 0, *span))
                    for name, rows, span in parts
                ]
            ),
        )
        bias_vector = self._bias(parts) if bias else None
        return self._product(weights, bias_vector)

    def _product(self, weights: Sequence[Weight], bias: Tensor | None) -> Linear:
        if len(weights) == 1:
            return self._backend.linear(weights[0], bias)
        products, at = [], 0
        for weight in weights:
            here = slice(at, at + weight.shape[0])
            products.append(self._backend.linear(weight, None if bias is None else bias[here].contiguous()))
            at = here.stop
        return JoinedLinear(products)

    def _row_parallel(self, name: str, rows: int, columns: int, bias: bool) -> Linear:
        part = MatrixPart((rows, columns), 1, *self._even_span(columns))
        (weight,) = self._weights(name, lambda: [self._matrix(self._source.projections, name, part)], is_share=True)
        bias_vector = self._bias([(name, rows, (0, rows))]) if bias else None
        return self._backend.row_parallel(weight, bias_vector, self._group)

    def _head_matrix(self, name: str) -> Weight:
        """This rank's rows, with zeros past the vocabulary's end."""
        rows, (start, stop) = self._vocabulary_rows()
        part = MatrixPart((self._geometry.vocab_size, self._geometry.hidden_size), 0, start, stop)
        return with_outputs(self._matrix(self._source.head, name.removesuffix(".weight"), part), rows)

    def _vocabulary_table(self, name: str) -> Weight:
        """This rank's rows, with zeros past the vocabulary's end."""
        rows, (start, stop) = self._vocabulary_rows()
        shape = self._geometry.vocab_size, self._geometry.hidden_size
        stored = StoredWeight((self._checkpoint.read(name, shape, 0, start, stop),), self._geometry.dtype)
        self._loaded(stored.nbytes)
        _, held = self._held(name, with_outputs(stored, rows))
        return held

    def _positions(self) -> Table:
        """Whole on every rank."""
        (weight,) = self._weights(self._names.positions, lambda: [self._position_table()])
        return self._backend.table(weight, "positions")

    def _position_table(self) -> Weight:
        geometry, name, first = self._geometry, self._names.positions, self._names.first_position
        count = geometry.max_position_embeddings
        table = self._checkpoint.read(name, (first + count, geometry.hidden_size), 0, first, first + count)
        stored = StoredWeight((table,), geometry.dtype)
        self._loaded(stored.nbytes)
        _, held = self._held(name, with_outputs(stored, -(-count // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE))
        return held

    def _vocabulary_rows(self) -> tuple[int, Span]:
        """How many a rank holds, and which of the checkpoint's they are; the last ranks may have fewer, or none."""
        vocab = self._geometry.vocab_size
        rows = -(-vocab // (self._group.size * VOCABULARY_MULTIPLE)) * VOCABULARY_MULTIPLE
        return rows, (min(self._group.rank * rows, vocab), min((self._group.rank + 1) * rows, vocab))

    def _norm(self, name: str, size: int, multiplier: float = 1.0) -> Norm:
        """Whose results come times `multiplier`."""
        if self._geometry.norm != "layer":
            return self._rms_norm(name, size, multiplier)
        weight, bias = (self._vector(each, size).float() for each in (name, f"{name.removesuffix('.weight')}.bias"))
        return LayerNorm(weight * multiplier, bias * multiplier, self._geometry.norm_eps)

    def _norm_if_named(self, name: str, index: int) -> Norm | None:
        return self._norm(name.format(index), self._geometry.hidden_size) if name else None

    def _rms_norm(self, name: str, size: int, multiplier: float = 1.0) -> RMSNorm:
        weight = self._vector(name, size).float()
        if self._geometry.norm == "rms_less_1":
            weight = weight + 1.0
        return RMSNorm(weight * multiplier, self._geometry.norm_eps)


def by_head(parts: list[tuple[str, int, Span]], head_dim: int) -> list[tuple[str, int, Span]]:
    """The parts of one matrix that holds a head of each, then the next head of each."""
    rows = sum(part_rows for _, part_rows, _ in parts)
    return [
        (name, rows, (at, at + head_dim))
        for index, (name, _, (start, stop)) in enumerate(parts)
        for at in range(len(parts) * start + index * head_dim, len(parts) * stop, len(parts) * head_dim)
    ]


def stacked(parts: list[tuple[str, int, Span]]) -> list[tuple[str, int, Span]]:
    """The parts of one matrix that holds them one below the other."""
    rows, found = sum(part_rows for _, part_rows, _ in parts), []
    at = 0
    for name, part_rows, (start, stop) in parts:
        found.append((name, rows, (at + start, at + stop)))
        at += part_rows
    return found
