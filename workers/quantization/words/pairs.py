"""Matrices of 4-bit codes in pairs, a byte for two inputs of an output, the first of them in its low half."""

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.matrix_reader import MatrixPart, check_cuts
from ...checkpoint.safetensors_files import Checkpoint

PAIR = 2


def codes_of_pairs(checkpoint: Checkpoint, tensor: str, part: MatrixPart, group: int) -> Tensor:
    """The codes [out, in] of `part`, stored in pairs. Raises ConfigError if there would be parts of groups."""
    outputs, inputs = part.shape
    if inputs % group:
        raise ConfigError(
            f"{checkpoint.folder}: {tensor} has {inputs} inputs, which are not a multiple of {group}, as of its format"
        )
    check_cuts(tensor.rpartition(".")[0], part, group)
    pairs = checkpoint.read(tensor, (outputs, inputs // PAIR), part.dim, *span_of(part, PAIR), dtypes=("U8",))
    return torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1)


def span_of(part: MatrixPart, inputs: int) -> tuple[int, int]:
    """Where `part` is in a tensor that has one element for so many inputs."""
    return (part.start, part.stop) if part.dim == 0 else (part.start // inputs, part.stop // inputs)
