"""Reads the embeddings of tokens and positions, and the output head."""

import logging
from dataclasses import replace

import torch

from ...checkpoint.matrix_reader import MatrixPart
from ...checkpoint.weight_forms import Weight, with_outputs
from ...layers.adapters.sites import SitePart
from ...layers.embedding import OutputHead, Table, VocabularyEmbedding
from ...layers.linear import Linear
from ...layers.ops import Ops
from ...layers.trigonometry import sinusoids
from ..matrix_rows import Rows
from ..packed_weights.cache import PackedReader
from ..projected import PredictingLinear
from .layer_reader import LayerReader
from .weight_reader import VOCABULARY_MULTIPLE

log = logging.getLogger(__name__)


class VocabularyReader:
    """The rows of the vocabulary are divided among the ranks; positions are on every rank."""

    def __init__(self, reader: LayerReader):
        self._reader = reader

    def read(self) -> tuple[VocabularyEmbedding, OutputHead | None]:
        """The embedding of tokens and the output head; None: another head follows the model."""
        reader = self._reader
        geometry, names, backend = reader.geometry, reader.names, reader.backend
        (weight,) = reader.weights(names.embedding, lambda: [self.table(names.embedding)])
        if geometry.head != "tokens":
            table = backend.table(weight, multiplier=geometry.multipliers.embedding)
            return self.adapted_embedding(VocabularyEmbedding(table, reader.group)), None
        is_tied = geometry.tie_word_embeddings and not self._has_own_head()
        if is_tied and not reader.source.quantizes_head and not geometry.biases.head:
            tied = backend.tied_table(weight, geometry.multipliers.embedding)
            return self.adapted_embedding(VocabularyEmbedding(tied, reader.group)), self.output_head(tied)
        table = backend.table(weight, multiplier=geometry.multipliers.embedding)
        embedding = self.adapted_embedding(VocabularyEmbedding(table, reader.group))
        head_name = names.embedding if is_tied else names.output_head
        (matrix,) = reader.weights("head", lambda: [self.head_matrix(head_name)])
        bias = reader.head_bias(names.output_head.removesuffix(".weight")) if geometry.biases.head else None
        return embedding, self.output_head(backend.head(matrix, bias))

    def adapted_embedding(self, embedding: VocabularyEmbedding) -> VocabularyEmbedding:
        """With what LoRA adapters add, if requests can use any."""
        reader = self._reader
        geometry = reader.geometry
        if reader.adapters is None:
            return embedding
        name, sizes = reader.names.embedding.removesuffix(".weight"), (geometry.vocab_size, geometry.embedding_size)
        return reader.adapters.embedding(embedding, name, *sizes, geometry.multipliers.embedding)

    def output_head(self, head: Linear) -> OutputHead:
        reader = self._reader
        geometry = reader.geometry
        if reader.adapters is not None:
            count, span = reader.vocabulary_rows()
            name = reader.names.output_head.removesuffix(".weight")
            part = SitePart(name, geometry.vocab_size, torch.arange(*span), count)
            head = reader.adapters.head(head, part, geometry.vector_size)
        return OutputHead(head, geometry.vocab_size, reader.group)

    def predicting(self, head: OutputHead, ops: Ops) -> OutputHead:
        """The output head behind the prediction head, which every rank computes whole."""
        reader = self._reader
        geometry, names = reader.geometry, reader.names
        size, activation = geometry.vector_size, replace(geometry.activation, is_gated=False)
        dense = reader.column_parallel([Rows(names.head_dense, size, (0, size))], size, False)
        norm = reader.norm(names.head_norm, size)
        return OutputHead(PredictingLinear(head.share, dense, activation, norm, ops), geometry.vocab_size, reader.group)

    def _has_own_head(self) -> bool:
        """Whether the checkpoint has an output head that differs from the embedding it should be tied to.

        As in transformers, the head in the file is then used. Each rank compares only its own rows: where they are
        equal, either matrix gives the same result.
        """
        reader = self._reader
        name, embedding = reader.names.output_head, reader.names.embedding
        if name not in reader.checkpoint.entries:
            return False
        if isinstance(reader.store, PackedReader):
            has_own = "head" in reader.store.record.weights and not reader.source.quantizes_head
        else:
            shape, dtype = (reader.geometry.vocab_size, reader.geometry.vector_size), reader.geometry.dtype
            _, rows = reader.vocabulary_rows()
            one, other = (reader.checkpoint.read(n, shape, 0, *rows).to(dtype) for n in (name, embedding))
            has_own = not torch.equal(one, other)
        if has_own:
            log.warning(
                "tensor %s differs from %s, to which config.json ties it (tie_word_embeddings=true): it is used as the "
                "output head, as in transformers; set tie_word_embeddings=false in config.json to make this explicit",
                name,
                embedding,
            )
        return has_own

    def head_matrix(self, name: str) -> Weight:
        """This rank's rows, with zeros past the vocabulary's end."""
        reader = self._reader
        rows, (start, stop) = reader.vocabulary_rows()
        part = MatrixPart((reader.geometry.vocab_size, reader.geometry.vector_size), 0, start, stop)
        return with_outputs(reader.matrix(reader.source.head, name.removesuffix(".weight"), part), rows)

    def table(self, name: str) -> Weight:
        """This rank's rows, with zeros past the vocabulary's end."""
        reader = self._reader
        rows, (start, stop) = reader.vocabulary_rows()
        stored = reader.geometry.vocab_size + reader.geometry.embeddings.num_unused
        part = MatrixPart((stored, reader.geometry.embedding_size), 0, start, stop)
        return reader.table_part(name, part, rows)

    def positions(self) -> Table:
        """The table of positions, read or computed; every rank holds the full table."""
        reader = self._reader
        (weight,) = reader.weights(reader.names.positions, lambda: [self._position_table()])
        return reader.backend.table(weight, "positions")

    def _position_table(self) -> Weight:
        reader = self._reader
        geometry, name, first = reader.geometry, reader.names.positions, reader.names.first_position
        count = geometry.max_position_embeddings
        rows = -(-count // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        if reader.names.has_sinusoids:
            return reader.table_of(name, torch.from_numpy(sinusoids(first, count, geometry.position_size)), rows)
        return reader.table_rows(name, (first + count, geometry.position_size), (first, first + count), rows)
