"""What the mixers of several kinds of recurrent layers have in common."""

from functools import cached_property, partial

import torch
from torch import Tensor

from ....checkpoint.conversion import converted
from ....layers.recurrent.keeping import KeepingRecurrences
from ....layers.recurrent.recurrences import Recurrences
from ....layers.recurrent.weights import CausalConv
from ...matrix_rows import Rows
from ..layer_reader import LayerReader


class RecurrentParts:
    """Reads convolutions and decay rates."""

    def __init__(self, reader: LayerReader):
        self._reader = reader

    @cached_property
    def recurrences(self) -> Recurrences:
        return KeepingRecurrences(self._reader.backend.recurrences())

    def convolution(
        self, parts: list[Rows], width: int, has_bias: bool = False, *, activates: bool = True
    ) -> CausalConv:
        """Of the given channels of one or several tensors."""
        bias = self._reader.bias(parts).float() if has_bias else None
        weight = self._reader.tensor(parts[0].name, lambda: self._channels(parts, width))
        return CausalConv(weight.float(), bias, activates)

    def _channels(self, parts: list[Rows], width: int) -> Tensor:
        """The filters of this rank's channels, [width, channels] in the model's dtype."""
        reader = self._reader
        read = reader.checkpoint.read
        found = [read(f"{part.name}.weight", (part.total, 1, width), 0, *part.span) for part in parts]
        each = [
            converted(f"{part.name}.weight", one, reader.geometry.dtype) for part, one in zip(parts, found, strict=True)
        ]
        held = torch.cat(each).to(reader.device).squeeze(1).T.contiguous()
        reader.loaded(held.nbytes)
        return held

    def rates_of_heads(self, a_log: str, heads: int, shape: tuple[int, ...] = ()) -> Tensor:
        """-exp(A_log), which GGUF files have as A. `shape`: of A_log, if it is more than a vector."""
        reader = self._reader
        if (name := a_log.removesuffix("_log")) in reader.checkpoint.entries:
            return self.per_head(name, heads)
        read = partial(reader.read_tensor, a_log, shape or (heads,), dtype=torch.float32)
        return -reader.tensor(a_log, read).flatten().exp()

    def per_head(self, name: str, heads: int) -> Tensor:
        """A vector of all heads in float32, not rounded to the model's dtype: decays are powers of it."""
        return self._reader.tensor(name, lambda: self._reader.read_tensor(name, (heads,), dtype=torch.float32))
