"""Reads the mixers of recurrent layers."""

from torch import Tensor

from ...checkpoint.conversion import converted
from ...checkpoint.recurrent.gated_delta import GatedDeltaLayer
from ...checkpoint.recurrent.mamba2 import Mamba2Layer
from ...checkpoint.recurrent.short_convolution import ShortConvolution
from ...layers.recurrent.weights import CausalConv
from ...mixers.mixer import Mixer
from ...mixers.short_convolution import ShortConvolutionMixer
from ..matrix_rows import Rows, Span, stacked_rows
from .gated_delta_reader import GatedDeltaReader


class RecurrentReader(GatedDeltaReader):
    """Reads the mixer of a recurrent layer. Channels are divided among the ranks."""

    def _recurrent(self, index: int) -> Mixer:
        kind = self._geometry.recurrent_of(index)
        match kind:
            case ShortConvolution():
                return self._short_convolution(index, kind)
            case Mamba2Layer():
                return self._mamba2(index, kind)
            case GatedDeltaLayer():
                return self._gated_delta(index, kind)
            case _:
                raise AssertionError(f"layer {index} has a mixer without a reader: {kind}")

    def _short_convolution(self, index: int, kind: ShortConvolution) -> Mixer:
        names, hidden = self._names.short_convolution, self._geometry.hidden_size
        span = self._even_span(kind.channels)
        name = names.convolution.format(index)
        rows = stacked_rows([names.into.format(index)] * 3, kind.channels, span)
        weight = self._tensor(name, lambda: self._convolution_weight(name, kind.channels, kind.width, span))
        bias = self._bias([Rows(name, kind.channels, span)]).float() if kind.has_bias else None
        return ShortConvolutionMixer(
            layer=index,
            gates_and_x=self._column_parallel(rows, hidden, kind.has_bias),
            convolution=CausalConv(weight.float(), bias, activates=False),
            output=self._row_parallel(names.output.format(index), hidden, kind.channels, kind.has_bias),
            recurrences=self._recurrences,
        )

    def _convolution_weight(self, name: str, channels: int, width: int, span: Span) -> Tensor:
        """This rank's channels, [width, channels] in the model's dtype."""
        found = self._checkpoint.read(f"{name}.weight", (channels, 1, width), 0, *span)
        held = converted(name, found, self._geometry.dtype).to(self._device).squeeze(1).T.contiguous()
        self._loaded(held.nbytes)
        return held
