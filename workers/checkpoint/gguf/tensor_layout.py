"""How the tensors of an architecture are named and stored in GGUF files."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paged_serve.protocol.gguf.container import GgufTensor

from .row_orders import Kind

LAYER = "model.layers.{}."
WHOLE = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
KINDS = ("weight", "bias")
_IN_LAYER = re.compile(r"blk\.(\d{1,4})\.(.+)")
MAX_LAYERS = 1 << 14


def as_row(tensor: GgufTensor) -> GgufTensor:
    """A vector as a matrix of one output."""
    return GgufTensor(tensor.name, (1, *tensor.shape[-1:]), tensor.format, tensor.start)


def as_vector(tensor: GgufTensor) -> GgufTensor:
    """All elements in one dimension."""
    return GgufTensor(tensor.name, (tensor.num_elements,), tensor.format, tensor.start)


def as_filters(tensor: GgufTensor) -> GgufTensor:
    """A convolution [channels, width], which may have dimensions of 1, with that of one input channel."""
    width = tensor.shape[-1]
    return GgufTensor(tensor.name, (tensor.num_elements // max(width, 1), 1, width), tensor.format, tensor.start)


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
    norms_plus_1: bool = False  # a norm's weight is stored plus 1, but for `exact_norms`
    exact_norms: tuple[str, ...] = ()  # endings of names
    negated: tuple[str, ...] = ()  # names in a layer of vectors that a checkpoint has with the other sign
    row_orders: Mapping[str, Kind] = field(default_factory=dict)  # by name in a layer
    column_orders: Mapping[str, Kind] = field(default_factory=dict)
    # Tensors of which a checkpoint has the rows as several: their names there, and the kinds of rows.
    divided: Mapping[str, tuple[tuple[str, Kind], ...]] = field(default_factory=dict)
    further: str = ""  # the beginning of names in layers beyond the decoder's last, `{}` from 0; "": that of all layers
    reshaped: Mapping[str, Callable[[GgufTensor], GgufTensor]] = field(default_factory=dict)  # by name in a layer
    own_names: Mapping[str, Any] = field(default_factory=dict)  # fields of WeightNames that these files have otherwise

    def name(self, tensor: str, num_layers: int = MAX_LAYERS) -> str | None:
        """The name of a GGUF tensor in a Hugging Face checkpoint; None: it has no such tensor.

        `num_layers`: of the decoder, without further ones.
        """
        if match := _IN_LAYER.fullmatch(tensor):
            found = _found(self.in_layers, match[2])
            return None if found is None else self._beginning(int(match[1]), num_layers, found) + found
        return _found(self.whole, tensor)

    def _beginning(self, layer: int, num_layers: int, found: str) -> str:
        if not self.further or layer < num_layers:
            return self.layer.format(layer)
        own = self.further.partition(".")[0] + "."
        return "" if found.startswith(own) else self.further.format(layer - num_layers)

    def norm_is_plus_1(self, tensor: str) -> bool:
        return self.norms_plus_1 and tensor.endswith("norm.weight") and not tensor.endswith(self.exact_norms)

    def names_of_experts(self, tensor: str, num_layers: int = MAX_LAYERS) -> tuple[str, ...]:
        """The names of a GGUF tensor's matrices or biases, with `{}` for the expert; empty: it has none of experts."""
        if (match := _IN_LAYER.fullmatch(tensor)) is None:
            found = _found(self.stacked, tensor)
            return () if found is None else (found,)
        module, _, kind = match[2].rpartition(".")
        names = self.experts.get(module) if kind in KINDS else None
        layer = self._beginning(int(match[1]), num_layers, "")
        return tuple(f"{layer}{name}.{kind}" for name in ((names,) if isinstance(names, str) else names or ()))

    def reshape(self, tensor: GgufTensor) -> GgufTensor:
        """The tensor in the shape that it has in Hugging Face checkpoints."""
        match = _IN_LAYER.fullmatch(tensor.name)
        change = None if match is None else self.reshaped.get(match[2])
        found = tensor if change is None or not tensor.shape else change(tensor)
        return found if found.num_elements == tensor.num_elements else tensor  # another shape is refused by its name


def name_in_layer(tensor: str) -> str:
    """Without the layer; "": it is in none."""
    match = _IN_LAYER.fullmatch(tensor)
    return match[2] if match else ""


def _found(names: Mapping[str, str], tensor: str) -> str | None:
    if tensor in names:
        return names[tensor]
    module, _, kind = tensor.rpartition(".")
    return f"{names[module]}.{kind}" if module in names and kind in KINDS else None
