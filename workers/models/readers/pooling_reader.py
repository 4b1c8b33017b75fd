"""Reads the layers between pooled hidden states and the vectors of an answer."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file

from ...checkpoint.conversion import converted
from ...checkpoint.safetensors_files import Checkpoint, check_names
from ...pooling.head import Dense, LabelLayer, LayerActivation, Norm, PoolingHead
from ...pooling.spec import PoolingSpec

DENSE_ACTIVATIONS = {"Identity": "none", "Tanh": "tanh"}


class DenseFields(msgspec.Struct, frozen=True):
    """config.json of a Dense module of sentence-transformers."""

    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


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
