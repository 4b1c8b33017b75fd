"""The matrices and biases of single experts in a GGUF tensor that has those of all experts of a layer in turn."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import MAX_EXPERTS, GgufTensor

DIMENSIONS = {"weight": 3, "bias": 2}  # experts, outputs, inputs


def expert_tensors(path: Path, tensor: GgufTensor, names: Sequence[str]) -> Iterator[tuple[str, GgufTensor]]:
    """The name and place of each expert's matrix or bias; `names` have `{}` for the expert. Raises ConfigError.

    With several names, each has as many rows of every expert, one after the other.
    """
    dimensions = DIMENSIONS[names[0].rpartition(".")[2]]
    if len(tensor.shape) != dimensions or tensor.shape[0] > MAX_EXPERTS:
        raise ConfigError(
            f"{path}: tensor {tensor.name} has the shape {list(tensor.shape)}; it needs {dimensions} dimensions, the "
            f"first of at most {MAX_EXPERTS} experts"
        )
    if tensor.shape[1] % len(names):
        raise ConfigError(f"{path}: tensor {tensor.name} has {tensor.shape[1]} rows for {len(names)} matrices")
    shape = (tensor.shape[1] // len(names), *tensor.shape[2:])
    num_bytes = math.prod(shape) // tensor.format.num_elements * tensor.format.num_bytes
    for index in range(tensor.shape[0] * len(names)):
        own = names[index % len(names)].format(index // len(names))
        yield own, GgufTensor(own, shape, tensor.format, tensor.start + index * num_bytes)
