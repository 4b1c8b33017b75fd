"""The matrices and biases of single experts in a GGUF tensor that has those of all experts of a layer in turn."""

import math
from collections.abc import Iterator
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import MAX_EXPERTS, GgufTensor

DIMENSIONS = {"weight": 3, "bias": 2}  # experts, outputs, inputs


def expert_tensors(path: Path, tensor: GgufTensor, name: str) -> Iterator[tuple[str, GgufTensor]]:
    """The name and place of each expert's matrix or bias; `name` has `{}` for the expert. Raises ConfigError."""
    dimensions = DIMENSIONS[name.rpartition(".")[2]]
    if len(tensor.shape) != dimensions or tensor.shape[0] > MAX_EXPERTS:
        raise ConfigError(
            f"{path}: tensor {tensor.name} has the shape {list(tensor.shape)}; it needs {dimensions} dimensions, the "
            f"first of at most {MAX_EXPERTS} experts"
        )
    shape = tensor.shape[1:]
    num_bytes = math.prod(shape) // tensor.format.num_elements * tensor.format.num_bytes
    for expert in range(tensor.shape[0]):
        own = name.format(expert)
        yield own, GgufTensor(own, shape, tensor.format, tensor.start + expert * num_bytes)
