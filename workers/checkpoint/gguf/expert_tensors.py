"""The matrices of single experts in a GGUF tensor that has those of all experts of a layer, one after another."""

import math
from collections.abc import Iterator
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import GgufTensor

MAX_EXPERTS = 1 << 12
EXPERT_DIMENSIONS = 3  # experts, outputs, inputs


def expert_tensors(path: Path, tensor: GgufTensor, name: str) -> Iterator[tuple[str, GgufTensor]]:
    """The name of each expert's matrix, of which `name` has `{}` for the expert, and its place. Raises ConfigError."""
    if len(tensor.shape) != EXPERT_DIMENSIONS or tensor.shape[0] > MAX_EXPERTS:
        raise ConfigError(
            f"{path}: tensor {tensor.name} has the shape {list(tensor.shape)}; it must be a matrix for each of at most "
            f"{MAX_EXPERTS} experts"
        )
    shape = tensor.shape[1:]
    num_bytes = math.prod(shape) // tensor.format.num_elements * tensor.format.num_bytes
    for expert in range(tensor.shape[0]):
        own = name.format(expert)
        yield own, GgufTensor(own, shape, tensor.format, tensor.start + expert * num_bytes)


def as_row(tensor: GgufTensor) -> GgufTensor:
    """A vector as a matrix of one output."""
    return GgufTensor(tensor.name, (1, *tensor.shape), tensor.format, tensor.start)
