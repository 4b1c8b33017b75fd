"""Reads the mixers of recurrent layers."""

from ...geometry.recurrent.gated_delta import GatedDeltaLayer
from ...geometry.recurrent.mamba1 import Mamba1Layer
from ...geometry.recurrent.mamba2 import Mamba2Layer
from ...geometry.recurrent.short_convolution import ShortConvolution
from ...mixers.mixer import Mixer
from ...mixers.short_convolution import ShortConvolutionMixer
from ..matrix_rows import Rows, stacked_rows
from .gated_delta_reader import GatedDeltaReader
from .mamba1_reader import Mamba1Reader


class RecurrentReader(Mamba1Reader, GatedDeltaReader):
    """Reads the mixer of a recurrent layer. Channels are divided among the ranks."""

    def _recurrent(self, index: int) -> Mixer:
        kind = self._geometry.recurrent_of(index)
        match kind:
            case ShortConvolution():
                return self._short_convolution(index, kind)
            case Mamba1Layer():
                return self._mamba1(index, kind)
            case Mamba2Layer():
                return self._mamba2(index, kind)
            case GatedDeltaLayer():
                return self._kimi_delta(index, kind) if kind.rank else self._gated_delta(index, kind)
            case _:
                raise AssertionError(f"layer {index} has a mixer without a reader: {kind}")

    def _short_convolution(self, index: int, kind: ShortConvolution) -> Mixer:
        names, hidden = self._names.short_convolution, self._geometry.hidden_size
        span = self._even_span(kind.channels)
        channels = [Rows(names.convolution.format(index), kind.channels, span)]
        rows = stacked_rows([names.into.format(index)] * 3, kind.channels, span)
        return ShortConvolutionMixer(
            layer=index,
            gates_and_x=self._column_parallel(rows, hidden, kind.has_bias),
            convolution=self._convolution(channels, kind.width, kind.has_bias, activates=False),
            output=self._row_parallel(names.output.format(index), hidden, kind.channels, kind.has_bias),
            recurrences=self._recurrences,
        )
