"""The interface of readers of weight matrices, and helpers for readers of grouped weights."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from .safetensors_files import Checkpoint
from .weight_forms import StoredWeight, Weight


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """One rank's share of a matrix of `shape` [out, in]: outputs (dim 0) or inputs (dim 1) in [start, stop)."""

    shape: tuple[int, int]
    dim: int
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        return self.stop - self.start == self.shape[self.dim]

    @property
    def outputs(self) -> slice:
        return slice(self.start, self.stop) if self.dim == 0 else slice(None)

    @property
    def inputs(self) -> slice:
        return slice(self.start, self.stop) if self.dim == 1 else slice(None)


class MatrixReader(Protocol):
    """Reads projections by name (the part before ".weight"), in the checkpoint's form or quantized on load."""

    def read(self, name: str, part: MatrixPart) -> Weight: ...


@dataclass(frozen=True, slots=True)
class FloatReader:
    """Reads float matrices, in the model's dtype."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    is_transposed: bool = False  # the checkpoint stores matrices as [in, out]

    def read(self, name: str, part: MatrixPart) -> StoredWeight:
        return StoredWeight((self.stored(name, part),), self.dtype)

    def stored(self, name: str, part: MatrixPart) -> Tensor:
        """The matrix in the checkpoint's dtype."""
        if self.is_transposed:
            stored = self.checkpoint.read(f"{name}.weight", part.shape[::-1], 1 - part.dim, part.start, part.stop)
            return stored.t().contiguous()
        return self.checkpoint.read(f"{name}.weight", part.shape, part.dim, part.start, part.stop)


def num_groups(checkpoint: Checkpoint, name: str, dim: int, inputs: int, group_size: int) -> int:
    """The number of groups of inputs: the size of tensor `name` along `dim`, which must match the configuration.

    `group_size` -1 means one group of all inputs. Raises ConfigError.
    """
    wanted = inputs if group_size == -1 else min(group_size, inputs)
    entry = checkpoint.entries.get(name)
    groups = entry.shape[dim] if entry is not None and len(entry.shape) > dim else inputs // wanted
    if groups * wanted != inputs:
        raise ConfigError(
            f"{checkpoint.folder}: {name} has {groups} groups for {inputs} inputs, which are not groups of {wanted}"
        )
    return groups


def groups_of(name: str, part: MatrixPart, groups: int, order: Tensor | None) -> slice:
    """The groups that `part` contains. Raises ConfigError if ranks would have to share a group."""
    if part.dim == 0 or part.is_whole:
        return slice(None)
    if order is not None:
        raise ConfigError(
            f"{name} was quantized in activation order, so its groups contain inputs from everywhere and it cannot be "
            "divided among ranks; use tensor_parallel_size=1"
        )
    if groups == 1:  # all shares use the same scale
        return slice(None)
    size = part.shape[1] // groups
    check_cuts(name, part, size)
    return slice(part.start // size, part.stop // size)


def check_cuts(name: str, part: MatrixPart, size: int) -> None:
    """Raises ConfigError if a rank's share of the inputs begins or ends inside a group of `size`."""
    if part.dim == 1 and (part.start % size or part.stop % size):
        raise ConfigError(
            f"{name} is quantized in groups of {size} inputs, but a rank's share is inputs {part.start} to "
            f"{part.stop}; use a tensor_parallel_size that divides {part.shape[1]} inputs into multiples of {size}"
        )


def activation_order(checkpoint: Checkpoint, name: str, inputs: int, groups: int) -> Tensor | None:
    """The inputs ordered by group, from tensor `name`, which has each input's group; None if they are in order."""
    if name not in checkpoint.entries:
        return None
    group_of_input = checkpoint.read(name, (inputs,), dtypes=("I32",))
    sorted_groups = torch.arange(inputs) // (inputs // groups)
    if torch.equal(group_of_input, sorted_groups.int()) or bool((group_of_input == -1).all()):
        return None
    order = torch.argsort(group_of_input, stable=True)
    if not torch.equal(group_of_input[order], sorted_groups.int()):
        raise ConfigError(f"{checkpoint.folder}: {name} does not divide {inputs} inputs into {groups} equal groups")
    return order
