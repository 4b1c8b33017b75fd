"""Builds a Model whose layers run several times, each time with keys and values of their own (Ouro)."""

from collections.abc import Sequence
from dataclasses import replace

from ...layers.feed_forward import LayerEnd
from ...layers.norm import Norm
from ...mixers.attention import Attention
from ..assembly import Assembly
from ..decoder import DecoderLayer
from ..readers.layer_reader import LayerReader


class LoopedAssembly(Assembly):
    """A pass through a layer is a layer of the decoder. The last norm also ends each pass through all of them."""

    def __init__(self, reader: LayerReader):
        super().__init__(reader)
        self._stored = reader.geometry.num_layers // reader.geometry.num_loops
        self._first: list[DecoderLayer] = []  # of the first pass
        self._norm = super().final_norm(())

    def layer(self, index: int) -> DecoderLayer:
        if index < self._stored:
            self._first.append(super().layer(index))
        layer = self._first[index % self._stored]
        assert isinstance(layer.mixer, Attention), "layers that run several times have attention"
        layer = replace(layer, mixer=replace(layer.mixer, layer=index))
        ends_pass = (index + 1) % self._stored == 0 and index + 1 < self._reader.geometry.num_layers
        return replace(layer, end=LayerEnd(norm=self._norm)) if ends_pass else layer

    def final_norm(self, layers: Sequence[DecoderLayer]) -> Norm:
        return self._norm
