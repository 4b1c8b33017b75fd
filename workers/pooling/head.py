"""From pooled hidden states to the vectors of an answer: dense layers, then normalisation or an activation."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.pooling_params import PoolingParams

from .arithmetic import Vectors, each, gelu, layer_normalized, mean, normalized, product, sigmoid, softmax
from .spec import PoolingSpec

LayerActivation = Literal["none", "tanh", "relu", "gelu"]


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
