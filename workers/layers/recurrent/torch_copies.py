"""Copies by torch."""

import torch
from torch import Tensor


class TorchCopies:
    """The Copies of backends without recorded steps."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def copied(self, role: str, x: Tensor) -> Tensor:
        copy = self._copies[role] = x.clone(memory_format=torch.contiguous_format)
        return copy

    def copy_of(self, role: str, tokens: int, columns: int, dtype: torch.dtype) -> Tensor:
        copy = self._copies[role]
        assert (*copy.shape, copy.dtype) == (tokens, columns, dtype), copy.shape
        return copy
