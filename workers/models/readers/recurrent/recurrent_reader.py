"""Reads the mixers of recurrent layers."""

from ....geometry.recurrent.gated_delta import GatedDeltaLayer
from ....geometry.recurrent.lightning import LightningLayer
from ....geometry.recurrent.mamba1 import Mamba1Layer
from ....geometry.recurrent.mamba2 import Mamba2Layer
from ....geometry.recurrent.short_convolution import ShortConvolution
from ....layers.ops import Ops
from ....mixers.mixer import Mixer
from ....mixers.recurrent.short_convolution import ShortConvolutionMixer
from ...matrix_rows import Rows, stacked_rows
from ..layer_reader import LayerReader
from .gated_delta_reader import GatedDeltaReader
from .lightning_reader import LightningReader
from .mamba1_reader import Mamba1Reader
from .mamba2_reader import Mamba2Reader
from .recurrent_parts import RecurrentParts


class RecurrentReader:
    """Reads the mixer of a recurrent layer. Channels are divided among the ranks."""

    def __init__(self, reader: LayerReader, parts: RecurrentParts, ops: Ops):
        self._reader = reader
        self._parts = parts
        self._mamba1, self._mamba2 = Mamba1Reader(reader, parts), Mamba2Reader(reader, parts)
        self._delta = GatedDeltaReader(reader, parts)
        self._lightning = LightningReader(reader, parts, ops)

    def read(self, index: int) -> Mixer:
        kind = self._reader.geometry.recurrent_of(index)
        match kind:
            case ShortConvolution():
                return self._short_convolution(index, kind)
            case Mamba1Layer():
                return self._mamba1.read(index, kind)
            case Mamba2Layer():
                return self._mamba2.read(index, kind)
            case GatedDeltaLayer():
                return self._delta.kimi_delta(index, kind) if kind.rank else self._delta.gated_delta(index, kind)
            case LightningLayer():
                return self._lightning.read(index, kind)
            case _:
                raise AssertionError(f"layer {index} has a mixer without a reader: {kind}")

    def _short_convolution(self, index: int, kind: ShortConvolution) -> Mixer:
        reader = self._reader
        names, hidden = reader.names.short_convolution, reader.geometry.hidden_size
        span = reader.even_span(kind.channels)
        channels = [Rows(names.convolution.format(index), kind.channels, span)]
        rows = stacked_rows([names.into.format(index)] * 3, kind.channels, span)
        return ShortConvolutionMixer(
            layer=index,
            gates_and_x=reader.column_parallel(rows, hidden, kind.has_bias),
            convolution=self._parts.convolution(channels, kind.width, kind.has_bias, activates=False),
            output=reader.row_parallel(names.output.format(index), hidden, kind.channels, kind.has_bias),
            recurrences=self._parts.recurrences,
        )
