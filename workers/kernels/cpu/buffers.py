"""Memory for the results of a step's operations, reused by all layers and steps."""

import torch
from torch import Tensor

MAX_VIEWS = 512  # views kept; beyond this number all are discarded


class Buffers:
    """One buffer per role, width and dtype. A result is valid until the same role is requested again."""

    def __init__(self) -> None:
        self.version = 0  # changes whenever a buffer is reallocated
        self._pieces: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self._views: dict[tuple[str, int, int, torch.dtype], Tensor] = {}

    def take(self, role: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """A contiguous [rows, columns] tensor, with the data that was last written for the role."""
        view = self._views.get((role, rows, columns, dtype))
        return self._cut(role, rows, columns, dtype) if view is None else view

    def _cut(self, role: str, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        if len(self._views) >= MAX_VIEWS:
            self._views.clear()
        piece = self._pieces.get((role, columns, dtype))
        if piece is None or len(piece) < rows:
            room = 1 << (rows - 1).bit_length() if rows else 1
            self.version += 1
            piece = self._pieces[role, columns, dtype] = torch.empty((room, columns), dtype=dtype)
            self._views = {key: view for key, view in self._views.items() if (key[0], key[2]) != (role, columns)}
        view = self._views[role, rows, columns, dtype] = piece[:rows]
        return view
