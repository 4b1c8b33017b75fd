"""Builds the decoder from this rank's share of a checkpoint."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from ..checkpoint.matrix_reader import MatrixPart
from ..checkpoint.safetensors_files import check_names
from ..checkpoint.weight_forms import Weight, with_outputs
from ..distributed.allocator import release_freed_memory
from ..geometry.layer_options import AttentionOptions, distance_buckets
from ..layers.adapters.sites import SitePart
from ..layers.attention import AttentionBackend
from ..layers.embedding import OutputHead, Table, VocabularyEmbedding
from ..layers.linear import Linear
from ..layers.norm import Norm
from ..layers.ops import HeadLayout, Ops
from ..layers.rotary import Rotary
from ..mixers.attention import Attention, NarrowValues, SharedAttention
from ..mixers.feed_forward import LoneFeedForward
from ..mixers.mixer import Mixer
from ..pooling.head import PoolingHead
from ..quantization.gptq import skip_zero_biases
from .decoder import DecoderLayer, Model
from .matrix_rows import Rows, query_key_value_rows
from .packed_weights.cache import PackedReader, PackedWriter
from .projected import ClippedLinear, WholeNorms
from .readers.gated_delta_reader import without_gates
from .readers.latent_reader import LatentReader
from .readers.layer_input_reader import LayerInputReader
from .readers.parallel_mixer_reader import ParallelMixerReader
from .readers.weight_reader import VOCABULARY_MULTIPLE

log = logging.getLogger(__name__)


class Assembly(LatentReader, ParallelMixerReader, LayerInputReader):
    """Builds a decoder; each kind of weight is divided among the ranks in its own way."""

    def model(self, pooling: PoolingHead) -> Model:
        """Build the model. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        geometry, names, group = self._geometry, self._names, self._group
        heads = self._heads()
        attention, ops = self._backend.attention(heads), self._backend.ops(heads)
        embedding, head = self._vocabulary()
        embedding_norm = self._norm(names.embedding_norm, geometry.embedding_size) if names.embedding_norm else None
        positions = self._positions() if geometry.embeddings.has_learned_positions else None
        layer_inputs = self._layer_inputs(ops)
        layers = [self._layer(index, ops, attention) for index in range(geometry.num_layers)]
        final_norm = self._final_norm(layers)
        tied = (names.output_head,) if geometry.tie_word_embeddings or head is None else ()
        facts = self._finish((*names.unused, *tied))
        self._on_progress(self._checkpoint.total_bytes, self._checkpoint.total_bytes)
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
            ops=ops,
            attention=attention,
            weights_bytes=self._loaded_bytes,
            quantization=facts,
            pooling=pooling,
            adapters=self._adapters,
            layer_inputs=layer_inputs,
        )

    def _final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        return self._norm(self._names.final_norm, self._geometry.hidden_size, self._geometry.multipliers.logits)

    def _finish(self, unused: tuple[str, ...]) -> dict[str, str]:
        """The facts of quantization. Raises ConfigError if the checkpoint has an unused tensor."""
        if isinstance(self._store, PackedReader):
            self._loaded_bytes = self._store.record.weights_bytes
            return self._store.record.facts
        skip_zero_biases(self._checkpoint)
        check_names(self._checkpoint, unused, self._names.unused_prefixes)
        facts = self._source.report.facts()
        if isinstance(self._store, PackedWriter):
            self._store.commit(self._loaded_bytes, facts)
        return facts

    def _vocabulary(self) -> tuple[VocabularyEmbedding, OutputHead | None]:
        geometry, names, backend = self._geometry, self._names, self._backend
        (weight,) = self._weights(names.embedding, lambda: [self._vocabulary_table(names.embedding)])
        if geometry.head != "tokens":
            table = backend.table(weight, multiplier=geometry.multipliers.embedding)
            return self._adapted_embedding(VocabularyEmbedding(table, self._group)), None
        is_tied = geometry.tie_word_embeddings and not self._has_own_head()
        if is_tied and not self._source.quantizes_head:
            tied = backend.tied_table(weight, geometry.multipliers.embedding)
            return self._adapted_embedding(VocabularyEmbedding(tied, self._group)), self._output_head(tied)
        table = backend.table(weight, multiplier=geometry.multipliers.embedding)
        embedding = self._adapted_embedding(VocabularyEmbedding(table, self._group))
        head_name = names.embedding if is_tied else names.output_head
        (matrix,) = self._weights("head", lambda: [self._head_matrix(head_name)])
        bias = self._head_bias(names.output_head.removesuffix(".weight")) if geometry.biases.head else None
        return embedding, self._output_head(backend.head(matrix, bias))

    def _adapted_embedding(self, embedding: VocabularyEmbedding) -> VocabularyEmbedding:
        geometry = self._geometry
        if self._adapters is None:
            return embedding
        name, sizes = self._names.embedding.removesuffix(".weight"), (geometry.vocab_size, geometry.embedding_size)
        return self._adapters.embedding(embedding, name, *sizes, geometry.multipliers.embedding)

    def _output_head(self, head: Linear) -> OutputHead:
        geometry = self._geometry
        if self._adapters is not None:
            count, span = self._vocabulary_rows()
            name = self._names.output_head.removesuffix(".weight")
            part = SitePart(name, geometry.vocab_size, torch.arange(*span), count)
            head = self._adapters.head(head, part, geometry.vector_size)
        return OutputHead(head, geometry.vocab_size, self._group)

    def _has_own_head(self) -> bool:
        """Whether the checkpoint has an output head that differs from the embedding it should be tied to.

        As in transformers, the head in the file is then used. Each rank compares only its own rows: where they are
        equal, either matrix gives the same result.
        """
        name, embedding = self._names.output_head, self._names.embedding
        if name not in self._checkpoint.entries:
            return False
        if isinstance(self._store, PackedReader):
            has_own = "head" in self._store.record.weights and not self._source.quantizes_head
        else:
            shape, dtype = (self._geometry.vocab_size, self._geometry.vector_size), self._geometry.dtype
            _, rows = self._vocabulary_rows()
            one, other = (self._checkpoint.read(n, shape, 0, *rows).to(dtype) for n in (name, embedding))
            has_own = not torch.equal(one, other)
        if has_own:
            log.warning(
                "tensor %s differs from %s, to which config.json ties it (tie_word_embeddings=true): it is used as the "
                "output head, as in transformers; set tie_word_embeddings=false in config.json to make this explicit",
                name,
                embedding,
            )
        return has_own

    def _heads(self) -> HeadLayout:
        geometry, size = self._geometry, self._group.size
        of_latent = geometry.latent.rope_dim if geometry.latent else None
        sizes = [of_latent or geometry.of_layer(layer).head_dim for layer in range(geometry.num_layers)]
        each = list(zip(geometry.ropes, sizes, strict=True))
        rotaries = {rotary: Rotary(*rotary, self._device) for rotary in each}
        heads = geometry.heads_of_rank(size), geometry.kv_heads_of_rank(size), geometry.head_dim
        by_layer = tuple(sizes.num_heads // size for sizes in geometry.layer_sizes)
        return HeadLayout(*heads, tuple(rotaries[rotary] for rotary in each), geometry.has_value_norm, by_layer)

    def _layer(self, index: int, ops: Ops, attention: AttentionBackend) -> DecoderLayer:
        names, is_recurrent = self._names, self._geometry.recurrent_of(index) is not None
        norms = names.norms(is_recurrent=is_recurrent)
        self._checkpoint.close()  # mapped pages count as this process's memory until they are unmapped
        release_freed_memory()
        return DecoderLayer(
            attention_norm=self._norm_if_named(
                norms.attention_norm if index or names.has_first_attention_norm else "", index
            ),
            mixer=self._mixer(index, ops, attention),
            attention_out_norm=self._norm_if_named(norms.attention_out_norm, index),
            mlp_norm=self._norm_if_named(norms.mlp_norm, index),
            feed_forward=None if self._geometry.lone_parts else self._feed_forward(index, ops),
            mlp_out_norm=self._norm_if_named(norms.mlp_out_norm, index),
            end=self._layer_end(index),
        )

    def _mixer(self, index: int, ops: Ops, backend: AttentionBackend) -> Mixer:
        if not self._geometry.has_mixer(index):
            feed_forward = self._feed_forward(index, ops)
            assert feed_forward is not None
            return LoneFeedForward(feed_forward)
        geometry = self._geometry
        if not geometry.has_attention(index):
            return self._recurrent(index)
        if geometry.latent is not None:
            return self._latent_attention(geometry.latent, self._attention_options(index), index, ops, backend)
        if geometry.kv_source(index) != index:
            return self._shared_attention(index, ops, backend)
        attention = self._attention(index, ops, backend)
        if geometry.recurrent_of(index) is not None:
            return self._parallel_mixer(attention, self._recurrent(index), ops)
        if geometry.value_dim is not None:
            factors = torch.full((geometry.value_dim,), geometry.value_scale, device=self._device)
            return NarrowValues(attention, geometry.head_dim, factors)
        return self._gated_attention(index, attention) if geometry.attention_gate else attention

    def _attention(self, index: int, ops: Ops, backend: AttentionBackend) -> Attention:
        norm = self._geometry.qk_norm
        query_norm, key_norm = self._head_norms(index)
        return Attention(
            layer=index,
            qkv=self._query_key_value(index, ops),
            query_norm=query_norm,
            key_norm=key_norm,
            output=self._attention_output(index),
            options=self._attention_options(index),
            ops=ops,
            backend=backend,
            query_factors=self._query_factors(index) if norm and norm.weighs_rotated_heads else None,
        )

    def _shared_attention(self, index: int, ops: Ops, backend: AttentionBackend) -> SharedAttention:
        """That of a layer whose file may have the projection and norm of keys and values, which are not used."""
        geometry, names = self._geometry.of_layer(index), self._names
        for unused in (names.key, names.value, names.key_norm.removesuffix(".weight")):
            self._checkpoint.skip(unused.format(index))
        first, last = self._even_span(geometry.num_heads)
        span = first * geometry.head_dim, last * geometry.head_dim
        query = Rows(names.query.format(index), geometry.num_heads * geometry.head_dim, span)
        return SharedAttention(
            layer=index,
            query=self._column_parallel([query], geometry.hidden_size, geometry.biases.qkv),
            query_norm=self._head_norms(index)[0],
            output=self._attention_output(index),
            options=self._attention_options(index),
            ops=ops,
            backend=backend,
        )

    def _attention_output(self, index: int) -> Linear:
        geometry, name = self._geometry.of_layer(index), self._names.output.format(index)
        inputs = geometry.num_heads * (geometry.value_dim or geometry.head_dim)
        return self._row_parallel(name, geometry.hidden_size, inputs, geometry.biases.output)

    def _query_key_value(self, index: int, ops: Ops) -> Linear:
        geometry, names, group = self._geometry.of_layer(index), self._names, self._group
        value = names.key if index in geometry.layers_with_one_kv_matrix else names.value
        each = names.query.format(index), names.key.format(index), value.format(index)
        queries, keys = self._even_span(geometry.num_heads), self._kv_heads(index)
        rows = query_key_value_rows(
            each, geometry, queries, keys, index, are_grouped=names.are_grouped, num_parts=names.num_parts
        )
        if geometry.attention_gate and not names.attention_gate:
            rows[0] = without_gates(rows[0], geometry.head_dim)
        product = self._column_parallel(rows, geometry.hidden_size, geometry.biases.qkv)
        if geometry.clip_qkv is not None:
            product = ClippedLinear(product, ops, geometry.clip_qkv)
        if geometry.qk_norm and geometry.qk_norm.spans == "all_heads":
            totals = [count * geometry.head_dim for count in (geometry.num_heads, geometry.num_kv_heads)]
            named = zip((names.query_norm, names.key_norm), totals, strict=True)
            norms = [self._whole_norm(name.format(index), total) for name, total in named]
            spans = [(first * geometry.head_dim, last * geometry.head_dim) for first, last in (queries, keys)]
            product = WholeNorms(product, ops, group, norms, spans)
        return product

    def _attention_options(self, index: int) -> AttentionOptions:
        geometry, names = self._geometry.of_layer(index), self._names
        slopes, sinks, here = None, None, slice(*self._even_span(geometry.num_heads))
        if geometry.slopes:
            slopes = torch.tensor(geometry.slopes[here], device=self._device)
        window, both_ways = geometry.sliding_windows[index], geometry.is_bidirectional
        if names.sinks and (window or geometry.has_sinks_beyond_windows):
            sinks = self._vector(names.sinks.format(index), geometry.num_heads)[here].float()
        chunk = geometry.attention_chunks[index] if geometry.attention_chunks else 0
        bias = self._relative_bias
        return AttentionOptions(geometry.scale, window, geometry.caps.scores, slopes, both_ways, chunk, sinks, bias)

    @cached_property
    def _relative_bias(self) -> Tensor | None:
        """What this rank's heads add at each distance, [heads, distances] float32; None: no relative positions."""
        if (relative := self._geometry.relative_positions) is None:
            return None
        name, heads = self._names.relative_bias, slice(*self._even_span(self._geometry.num_heads))
        table = self._tensor(name, lambda: self._read_tensor(name, (relative.num_buckets, self._geometry.num_heads)))
        buckets = distance_buckets(relative.num_buckets, relative.max_distance).to(table.device)
        return table.float()[buckets, heads].T.contiguous()

    def _head_matrix(self, name: str) -> Weight:
        """This rank's rows, with zeros past the vocabulary's end."""
        rows, (start, stop) = self._vocabulary_rows()
        part = MatrixPart((self._geometry.vocab_size, self._geometry.vector_size), 0, start, stop)
        return with_outputs(self._matrix(self._source.head, name.removesuffix(".weight"), part), rows)

    def _vocabulary_table(self, name: str) -> Weight:
        """This rank's rows, with zeros past the vocabulary's end."""
        rows, (start, stop) = self._vocabulary_rows()
        part = MatrixPart((self._geometry.vocab_size, self._geometry.embedding_size), 0, start, stop)
        return self._table_part(name, part, rows)

    def _positions(self) -> Table:
        """The table of learned positions; every rank holds the full table."""
        (weight,) = self._weights(self._names.positions, lambda: [self._position_table()])
        return self._backend.table(weight, "positions")

    def _position_table(self) -> Weight:
        geometry, name, first = self._geometry, self._names.positions, self._names.first_position
        count = geometry.max_position_embeddings
        rows = -(-count // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        return self._table_rows(name, (first + count, geometry.position_size), (first, first + count), rows)
