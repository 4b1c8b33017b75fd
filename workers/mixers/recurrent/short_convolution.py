"""The short convolution as a mixer (LFM2): a projection to two gates and the inputs of a causal convolution."""

from dataclasses import dataclass

from torch import Tensor

from ...layers.linear import Linear
from ...layers.recurrent.recurrences import Recurrences
from ...layers.recurrent.weights import CausalConv
from ..mixer import GroupStep


@dataclass(frozen=True, slots=True, eq=False)
class ShortConvolutionMixer:
    """output(C * convolution(B * x)), with B, C and x projected from the token."""

    layer: int
    gates_and_x: Linear  # B, then C, then x
    convolution: CausalConv
    output: Linear
    recurrences: Recurrences

    def __call__(self, step: GroupStep, normed: Tensor) -> Tensor:
        projected, view = self.gates_and_x(normed), step.view
        channels = projected.shape[1] // 3
        into, out_of, x = (projected[:, at * channels : (at + 1) * channels] for at in range(3))
        states = view.cache.states[self.layer].view(x.dtype).view(-1, self.convolution.width - 1, channels)
        mixed = self.recurrences.causal_conv(view.state_rows, states, self.convolution, x, into, out_of)
        return self.output(step.returned(mixed))
