"""How the tensors of an architecture are named and stored in GGUF files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paged_serve.protocol.gguf.container import GgufTensor

LAYER = "model.layers.{}."
WHOLE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
KINDS = ("weight", "bias")
_IN_LAYER = re.compile(r"blk\.(\d{1,4})\.(.+)")


def as_row(tensor: GgufTensor) -> GgufTensor:
    """A vector as a matrix of one output."""
    return GgufTensor(tensor.name, (1, *tensor.shape[-1:]), tensor.format, tensor.start)


def as_vector(tensor: GgufTensor) -> GgufTensor:
    """All elements in one dimension."""
    return GgufTensor(tensor.name, (tensor.num_elements,), tensor.format, tensor.start)


def as_filters(tensor: GgufTensor) -> GgufTensor:
    """A convolution [channels, width] with the dimension of one input channel."""
    channels, width = tensor.shape[0], tensor.shape[-1]
    return GgufTensor(tensor.name, (channels, 1, width), tensor.format, tensor.start)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """How an architecture's tensors are named and stored.

    Keys are the names of modules, or of single tensors with their ending; their values likewise, in Hugging Face files.
    """

    in_layers: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=lambda: WHOLE)
    layer: str = LAYER
    # Of tensors with a part for each expert, `{}` in the name; several names share each part's rows equally.
    experts: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    stacked: Mapping[str, str] = field(default_factory=dict)  # likewise of tensors outside of layers
    are_rows_interleaved: bool = False  # of q and k: the rows i and i + head_dim / 2 of each head are adjacent
    norms_plus_1: bool = False  # a norm's weight is stored plus 1
    reshaped: Mapping[str, Callable[[GgufTensor], GgufTensor]] = field(default_factory=dict)  # by name in a layer
    own_names: Mapping[str, Any] = field(default_factory=dict)  # fields of WeightNames that these files have otherwise

    def name(self, tensor: str) -> str | None:
        """The name of a GGUF tensor in a Hugging Face checkpoint; None: it has no such tensor."""
        if match := _IN_LAYER.fullmatch(tensor):
            found = _found(self.in_layers, match[2])
            return None if found is None else self.layer.format(int(match[1])) + found
        return _found(self.whole, tensor)

    def names_of_experts(self, tensor: str) -> tuple[str, ...]:
        """The names of a GGUF tensor's matrices or biases, with `{}` for the expert; empty: it has none of experts."""
        if (match := _IN_LAYER.fullmatch(tensor)) is None:
            found = _found(self.stacked, tensor)
            return () if found is None else (found,)
        module, _, kind = match[2].rpartition(".")
        names = self.experts.get(module) if kind in KINDS else None
        layer = self.layer.format(int(match[1]))
        return tuple(f"{layer}{name}.{kind}" for name in ((names,) if isinstance(names, str) else names or ()))

    def reshape(self, tensor: GgufTensor) -> GgufTensor:
        """The tensor in the shape that it has in Hugging Face checkpoints."""
        match = _IN_LAYER.fullmatch(tensor.name)
        change = None if match is None else self.reshaped.get(match[2])
        found = tensor if change is None or not tensor.shape else change(tensor)
        return found if found.num_elements == tensor.num_elements else tensor  # another shape is refused by its name


def _found(names: Mapping[str, str], tensor: str) -> str | None:
    if tensor in names:
        return names[tensor]
    module, _, kind = tensor.rpartition(".")
    return f"{names[module]}.{kind}" if module in names and kind in KINDS else None
