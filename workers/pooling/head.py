"""From pooled hidden states to the vectors of an answer: dense layers, then normalisation or an activation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file
from paged_serve.protocol.messages.pooling_params import PoolingParams

from ..checkpoint.conversion import converted
from ..checkpoint.safetensors_files import Checkpoint, check_names
from .arithmetic import Vectors, each, normalized, product, sigmoid, softmax
from .spec import PoolingSpec

LayerActivation = Literal["none", "tanh", "relu"]
DENSE_ACTIVATIONS = {"Identity": "none", "Tanh": "tanh"}


class DenseFields(msgspec.Struct, frozen=True):
    """config.json of a Dense module of sentence-transformers."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """One layer, in float32."""

    weight: Vectors  # [out, in]
    bias: NDArray[np.float32] | None
    activation: LayerActivation = "none"

    def __call__(self, x: Vectors) -> Vectors:
        y = product(x, self.weight, self.bias)
        if self.activation == "tanh":
            return each(math.tanh, y)
        return np.maximum(y, np.float32(0)) if self.activation == "relu" else y


@dataclass(frozen=True, slots=True, eq=False)
class PoolingHead:
    """The layers and functions that follow a model's last layer in pooling requests; they are computed on the host."""

    spec: PoolingSpec
    hidden_size: int
    layers: tuple[Dense, ...] = ()  # for scores and for embeddings of whole prompts

    @property
    def embedding_size(self) -> int:
        if "embed" not in self.spec.tasks:
            return 0
        return len(self.layers[-1].weight) if self.layers else self.hidden_size

    def __call__(self, pooled: Vectors, params: PoolingParams) -> Vectors:
        """Pooled hidden states [rows, hidden] -> the answer's vectors [rows, columns]."""
        if params.task != "token_embed":
            for layer in self.layers:
                pooled = layer(pooled)
        if params.task in ("embed", "token_embed"):
            cut = pooled[:, : params.dimensions]
            return normalized(cut) if params.use_activation and self.spec.normalizes else cut
        if not params.use_activation or self.spec.activation == "none":
            return pooled
        return softmax(pooled) if self.spec.activation == "softmax" else each(sigmoid, pooled)


def dense(
    checkpoint: Checkpoint,
    name: str,
    shape: tuple[int, int],
    activation: Literal["none", "tanh", "relu"],
    *,
    bias: bool,
) -> Dense:
    """The layer with weights `name`.weight [out, in] and `name`.bias. Raises ConfigError if they are not finite."""
    weight = _floats(checkpoint, f"{name}.weight", shape)
    return Dense(weight, _floats(checkpoint, f"{name}.bias", shape[:1]) if bias else None, activation)


def _floats(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A float32 copy of the tensor `name`, valid after the file is closed."""
    found: NDArray[np.float32] = converted(name, checkpoint.read(name, shape), torch.float32).numpy().copy()
    return found


def dense_module(folder: Path, hidden_size: int) -> Dense:
    """The sentence-transformers Dense module in `folder`. Raises ConfigError if it is not supported."""
    fields = read_json_file(folder / "config.json", DenseFields)
    activation = DENSE_ACTIVATIONS.get(fields.activation_function.rpartition(".")[2])
    if activation is None or fields.in_features != hidden_size:
        raise ConfigError(
            f"{folder / 'config.json'}: {fields.activation_function} over {fields.in_features} numbers is not "
            f"supported; Identity and Tanh over the model's {hidden_size} are"
        )
    checkpoint = Checkpoint(folder)
    shape = fields.out_features, hidden_size
    layer = dense(checkpoint, "linear", shape, "tanh" if activation == "tanh" else "none", bias=fields.bias)
    check_names(checkpoint, ())
    checkpoint.close()
    return layer


def pooling_head(folder: Path, spec: PoolingSpec, hidden_size: int, layers: Sequence[Dense]) -> PoolingHead:
    """The head for `spec`; `layers` are those of the model's own checkpoint."""
    behind = (dense_module(folder / spec.dense, hidden_size),) if spec.dense else ()
    return PoolingHead(spec, hidden_size, (*layers, *behind))
