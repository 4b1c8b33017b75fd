"""Reads what differs from other decoders in one with several residual streams."""

from ...layers.embedding import VocabularyEmbedding
from ...layers.feed_forward import FeedForward, LayerEnd
from ...layers.ops import Ops
from ...layers.streams.sparse_feed_forward import SparseFeedForward, norm_of_cut
from ...layers.streams.stream_ops import StreamOps
from ..matrix_rows import Rows
from ..readers.feed_forward_reader import FeedForwardReader
from ..readers.layer_input_reader import LayerInputReader
from ..readers.layer_reader import LayerReader
from ..readers.vocabulary_reader import VocabularyReader


class WideVocabularyReader(VocabularyReader):
    """Embeddings are float32."""

    def __init__(self, reader: LayerReader, streams: StreamOps):
        super().__init__(reader)
        self._streams = streams

    def adapted_embedding(self, embedding: VocabularyEmbedding) -> VocabularyEmbedding:
        return super().adapted_embedding(VocabularyEmbedding(self._streams.wide(embedding.table), self._reader.group))


class NoLayerEnds(LayerInputReader):
    """The input of a layer changes other streams than the layer's."""

    def end(self, index: int) -> LayerEnd | None:
        return None


class SparseFeedForwardReader(FeedForwardReader):
    """In the first layers only the greatest gates are kept."""

    def __init__(self, reader: LayerReader, ops: Ops, streams: StreamOps):
        super().__init__(reader, ops)
        self._streams = streams

    def dense(self, index: int) -> FeedForward:
        reader = self._reader
        geometry, names = reader.geometry, reader.names
        if (cut := geometry.gate_cuts[index] if geometry.gate_cuts else None) is None:
            return super().dense(index)
        size, hidden = geometry.intermediate_size, geometry.hidden_size
        gate, up = (
            reader.column_parallel([Rows(name.format(index), size, reader.even_span(size))], hidden, bias=False)
            for name in (names.gate, names.up)
        )
        return SparseFeedForward(
            gate=gate,
            cut=norm_of_cut(size, cut, reader.device),
            deviations=self._streams.deviations(size, geometry.dtype, is_centred=True),
            up=up,
            activation=geometry.activation,
            down=reader.row_parallel(names.down.format(index), hidden, size, bias=False),
            ops=self._ops,
            streams=self._streams,
            group=reader.group,
        )
