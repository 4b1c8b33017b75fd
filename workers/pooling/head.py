"""From pooled hidden states to the vectors of an answer: dense layers, then normalisation or an activation."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file
from paged_serve.protocol.messages.pooling_params import PoolingParams

from ..checkpoint.conversion import converted
from ..checkpoint.safetensors_files import Checkpoint, check_names
from .arithmetic import Vectors, each, gelu, layer_normalized, mean, normalized, product, sigmoid, softmax
from .spec import PoolingSpec

LayerActivation = Literal["none", "tanh", "relu", "gelu"]
DENSE_ACTIVATIONS = {"Identity": "none", "Tanh": "tanh"}


class LabelLayer(NamedTuple):
    """One of the layers from a hidden state to the labels' scores; its bias is used if the checkpoint has one."""

    name: str  # the tensors' names without ".weight" and ".bias"
    activation: LayerActivation = "none"
    norm: str = ""  # the same for a layer norm after the activation; "": none
    other_names: tuple[str, ...] = ()  # of the tensors, in checkpoints of other formats

    def found_in(self, tensors: Collection[str]) -> "LabelLayer":
        """The layer by its name in this checkpoint; its first name if it has none."""
        names = (self.name, *self.other_names)
        return self._replace(name=next((each for each in names if f"{each}.weight" in tensors), self.name))


class DenseFields(msgspec.Struct, frozen=True):
    """config.json of a Dense module of sentence-transformers."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A layer norm, in float32."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """One layer, in float32."""

    weight: Vectors  # [out, in]
    bias: NDArray[np.float32] | None
    activation: LayerActivation = "none"
    norm: Norm | None = None

    def __call__(self, x: Vectors) -> Vectors:
        y = self._activated(product(x, self.weight, self.bias))
        return y if self.norm is None else layer_normalized(y, self.norm.weight, self.norm.bias, self.norm.eps)

    def _activated(self, x: Vectors) -> Vectors:
        match self.activation:
            case "tanh":
                return each(math.tanh, x)
            case "gelu":
                return each(gelu, x)
            case "relu":
                return np.maximum(x, np.float32(0))
            case "none":
                return x


@dataclass(frozen=True, slots=True, eq=False)
class PoolingHead:
    """The layers and functions that follow a model's last layer in pooling requests; they are computed on the host."""

    spec: PoolingSpec
    hidden_size: int
    layers: tuple[Dense, ...] = ()  # for scores, embeddings of whole prompts, and late interaction

    @property
    def embedding_size(self) -> int:
        if not {"embed", "token_embed"} & {*self.spec.tasks}:
            return 0
        return len(self.layers[-1].weight) if self.layers else self.hidden_size

    def __call__(self, pooled: Vectors, params: PoolingParams) -> Vectors:
        """Pooled hidden states [rows, hidden] -> the answer's vectors [rows, columns].

        `returned_token_ids` choose columns before the activation, so probabilities are among these columns only.
        """
        if params.task != "token_embed" or self.spec.is_late_interaction:
            for layer in self.layers:
                pooled = layer(pooled)
        if self.spec.averages_scores:
            pooled = mean(pooled)
        if params.task in ("embed", "token_embed"):
            cut = pooled[:, : params.dimensions]
            return normalized(cut) if params.use_activation and self.spec.normalizes else cut
        if params.returned_token_ids:
            pooled = pooled[:, list(params.returned_token_ids)]
        if not params.use_activation or self.spec.activation == "none":
            return pooled
        return softmax(pooled) if self.spec.activation == "softmax" else each(sigmoid, pooled)


def label_layers(
    checkpoint: Checkpoint, layers: Sequence[LabelLayer], hidden_size: int, num_labels: int, eps: float
) -> list[Dense]:
    """The layers from a hidden state to the labels' scores; all but the last have `hidden_size` outputs.

    `num_labels` 0: the last has as many outputs as its tensor has rows. Raises ConfigError for a tensor that is
    missing, not finite or of the wrong shape.
    """
    found, layers = [], [layer.found_in(checkpoint.entries) for layer in layers]
    for layer in layers:
        outputs = (num_labels or _num_rows(checkpoint, layer)) if layer is layers[-1] else hidden_size
        norm = _norm(checkpoint, layer.norm, hidden_size, eps) if layer.norm else None
        found.append(_dense(checkpoint, layer.name, (outputs, hidden_size), layer.activation, norm))
    return found


def _dense(
    checkpoint: Checkpoint, name: str, shape: tuple[int, int], activation: LayerActivation, norm: Norm | None = None
) -> Dense:
    """The layer with weights `name`.weight [out, in] and, if the checkpoint has it, `name`.bias."""
    weight = np.asfortranarray(_floats(checkpoint, f"{name}.weight", shape))  # `product` reads it by columns
    return Dense(weight, _bias(checkpoint, name, shape[0]), activation, norm)


def _num_rows(checkpoint: Checkpoint, layer: LabelLayer) -> int:
    entry = checkpoint.entries.get(f"{layer.name}.weight")
    return entry.shape[0] if entry is not None and entry.shape else 0


def _norm(checkpoint: Checkpoint, name: str, size: int, eps: float) -> Norm:
    return Norm(_floats(checkpoint, f"{name}.weight", (size,)), _bias(checkpoint, name, size), eps)


def _bias(checkpoint: Checkpoint, name: str, size: int) -> NDArray[np.float32] | None:
    return _floats(checkpoint, f"{name}.bias", (size,)) if f"{name}.bias" in checkpoint.entries else None


def _floats(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A float32 copy of the tensor `name`, valid after the file is closed."""
    found: NDArray[np.float32] = converted(name, checkpoint.read(name, shape), torch.float32).numpy().copy()
    return found


def dense_module(folder: Path, hidden_size: int) -> Dense:
    """The sentence-transformers Dense module in `folder`. Raises ConfigError if it is not supported."""
    fields = read_json_file(folder / "config.json", DenseFields)
    activation = DENSE_ACTIVATIONS.get(fields.activation_function.rpartition(".")[2])
    if fields.use_residual:
        raise ConfigError(f"{folder / 'config.json'}: use_residual=true is not supported; a layer alone is")
    if activation is None or fields.in_features != hidden_size:
        raise ConfigError(
            f"{folder / 'config.json'}: {fields.activation_function} over {fields.in_features} numbers is not "
            f"supported; Identity and Tanh over the {hidden_size} before it are"
        )
    checkpoint = Checkpoint(folder)
    shape = fields.out_features, hidden_size
    layer = _dense(checkpoint, "linear", shape, "tanh" if activation == "tanh" else "none")
    if (layer.bias is not None) != fields.bias:
        raise ConfigError(f"{folder / 'config.json'}: bias={fields.bias}, but the weights say otherwise")
    check_names(checkpoint, ())
    checkpoint.close()
    return layer


def pooling_head(folder: Path, spec: PoolingSpec, hidden_size: int, layers: Sequence[Dense]) -> PoolingHead:
    """The head for `spec`; `layers` are those of the model's own checkpoint."""
    found = [*layers]
    for path in spec.dense:
        found.append(dense_module(folder / path, len(found[-1].weight) if found else hidden_size))
    return PoolingHead(spec, hidden_size, tuple(found))
