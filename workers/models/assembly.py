"""Builds the decoder from this rank's share of a checkpoint."""

from collections.abc import Sequence
from dataclasses import replace

from ..checkpoint.safetensors_files import check_names
from ..distributed.allocator import release_freed_memory
from ..layers.norm import Norm, RMSNorm
from ..layers.ops import HeadLayout
from ..layers.rotary import Rotary
from ..mixers.feed_forward import LoneFeedForward
from ..mixers.mixer import Mixer
from ..pooling.head import PoolingHead
from ..quantization.words.gptq import skip_zero_biases
from .decoder import DecoderLayer, Model
from .names.layer_number import layer_numbers
from .packed_weights.cache import PackedReader, PackedWriter
from .readers.attention_reader import AttentionReader
from .readers.feed_forward_reader import FeedForwardReader
from .readers.latent_reader import LatentReader
from .readers.layer_input_reader import LayerInputReader
from .readers.layer_reader import LayerReader
from .readers.recurrent.parallel_mixer_reader import parallel_mixer
from .readers.recurrent.recurrent_parts import RecurrentParts
from .readers.recurrent.recurrent_reader import RecurrentReader
from .readers.vocabulary_reader import VocabularyReader


class Assembly:
    """Builds a decoder of the parts that readers return. Other kinds of models replace a reader or a step."""

    def __init__(self, reader: LayerReader):
        self._reader = reader
        heads, backend = head_layout(reader), reader.backend
        self._attention_backend, self._ops = backend.attention(heads), backend.ops(heads)
        self._vocabulary = VocabularyReader(reader)
        recurrent_parts = RecurrentParts(reader)
        self._recurrent = RecurrentReader(reader, recurrent_parts, self._ops)
        self._attention = AttentionReader(reader, recurrent_parts, self._ops, self._attention_backend)
        self._latent_attention = LatentReader(reader, self._ops, self._attention_backend)
        self._feed_forward = FeedForwardReader(reader, self._ops)
        self._layer_input = LayerInputReader(reader)

    def model(self, pooling: PoolingHead) -> Model:
        """Build the model. Raises ConfigError naming a tensor that is missing, unused or of the wrong shape."""
        reader, geometry, names = self._reader, self._reader.geometry, self._reader.names
        embedding, head = self._vocabulary.read()
        if head is not None and geometry.has_prediction_head:
            head = self._vocabulary.predicting(head, self._ops)
        embedding_norm = reader.norm(names.embedding_norm, geometry.embedding_size) if names.embedding_norm else None
        positions = self._vocabulary.positions() if geometry.embeddings.has_positions else None
        layer_inputs = self._layer_input.inputs(self._ops)
        layers = [self.layer(index) for index in layer_numbers(geometry)]
        final_norm = self.final_norm(layers)
        tied = (names.output_head,) if geometry.tie_word_embeddings or head is None else ()
        facts = self.finish((*names.unused, *tied))
        reader.on_progress(reader.checkpoint.total_bytes, reader.checkpoint.total_bytes)
        return Model(
            geometry=replace(geometry, head_multiple=self._attention_backend.head_multiple),
            tp_size=reader.group.size,
            backend=reader.backend,
            embedding=embedding,
            embedding_norm=embedding_norm,
            positions=positions,
            layers=layers,
            final_norm=final_norm,
            output_head=head,
            ops=self._ops,
            attention=self._attention_backend,
            weights_bytes=reader.loaded_bytes,
            quantization=facts,
            pooling=pooling,
            adapters=reader.adapters,
            layer_inputs=layer_inputs,
        )

    def final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        geometry = self._reader.geometry
        norm = self._reader.norm(self._reader.names.final_norm, geometry.hidden_size, geometry.multipliers.logits)
        if (eps := geometry.final_norm_eps) is None:
            return norm
        assert isinstance(norm, RMSNorm), norm
        return RMSNorm(norm.weight, eps)

    def finish(self, unused: tuple[str, ...]) -> dict[str, str]:
        """The facts of quantization. Raises ConfigError if the checkpoint has an unused tensor."""
        reader = self._reader
        if isinstance(reader.store, PackedReader):
            reader.loaded_bytes = reader.store.record.weights_bytes
            return reader.store.record.facts
        skip_zero_biases(reader.checkpoint)
        check_names(reader.checkpoint, unused, reader.names.unused_prefixes)
        facts = reader.source.report.facts()
        if isinstance(reader.store, PackedWriter):
            reader.store.commit(reader.loaded_bytes, facts)
        return facts

    def layer(self, index: int) -> DecoderLayer:
        reader, names, geometry = self._reader, self._reader.names, self._reader.geometry
        has_experts = geometry.experts_of(index) is not None
        is_recurrent, lone_part = geometry.recurrent_of(index) is not None, geometry.lone_part(index)
        norms = names.norms(is_recurrent=is_recurrent, has_experts=has_experts, lone_part=lone_part)
        reader.checkpoint.close()  # mapped pages count as this process's memory until they are unmapped
        release_freed_memory()
        has_first_norm = index > 0 or names.has_first_attention_norm
        return DecoderLayer(
            attention_norm=reader.norm_if_named(norms.attention_norm if has_first_norm else "", index),
            mixer=self.mixer(index),
            attention_out_norm=reader.norm_if_named(norms.attention_out_norm, index),
            mlp_norm=reader.norm_if_named(norms.mlp_norm, index),
            feed_forward=None if geometry.lone_parts else self._feed_forward.read(index),
            mlp_out_norm=reader.norm_if_named(norms.mlp_out_norm, index),
            late_experts=self._feed_forward.late_experts(index),
            end=self._layer_input.end(index),
        )

    def mixer(self, index: int) -> Mixer:
        geometry = self._reader.geometry
        if not geometry.has_mixer(index):
            feed_forward = self._feed_forward.read(index)
            assert feed_forward is not None
            return LoneFeedForward(feed_forward)
        if not geometry.has_attention(index):
            return self._recurrent.read(index)
        if geometry.latent is not None:
            latent = self._latent_attention.read(index, geometry.latent, self._attention.options(index))
            return self._attention.gated(index, latent) if geometry.attention_gate else latent
        if geometry.recurrent_of(index) is not None:
            attention, recurrence = self._attention.attention(index), self._recurrent.read(index)
            return parallel_mixer(self._reader, attention, recurrence, self._ops)
        if geometry.attention_experts is not None:
            experts = self._feed_forward.experts.attention(index, geometry.attention_experts)
            return self._attention.mixture(index, experts)
        return self._attention.read(index)


def head_layout(reader: LayerReader) -> HeadLayout:
    """How this rank splits projected tokens into heads."""
    geometry, size = reader.geometry, reader.group.size
    of_latent = geometry.latent.rope_dim if geometry.latent else None
    sizes = [of_latent or geometry.of_layer(layer).head_dim for layer in range(geometry.num_layers)]
    each = list(zip(geometry.ropes, sizes, strict=True))
    rotaries = {rotary: Rotary(*rotary, reader.device) for rotary in each}
    heads = geometry.heads_of_rank(size), geometry.kv_heads_of_rank(size), geometry.head_dim
    by_layer = tuple(sizes.num_heads // size for sizes in geometry.layer_sizes)
    return HeadLayout(*heads, tuple(rotaries[rotary] for rotary in each), geometry.has_value_norm, by_layer)
