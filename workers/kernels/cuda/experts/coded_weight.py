"""Matrices of 4-bit codes on the device, as experts/product_weights.cuh reads them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....checkpoint.weight_forms import GroupedWeight

TILE_INPUTS, TILE_COLUMNS = 64, 128  # of the largest tile
CHUNK_INPUTS = 32  # copies of 16 bytes


@dataclass(frozen=True, slots=True, eq=False)
class CodedWeight:
    """A GroupedWeight of 4 bits. Scales and zero points have 128 more places than rows, for the last tile."""

    codes: Tensor  # [rows, inputs / 2] uint8, of two inputs the first in the low half
    scales: Tensor  # [groups of inputs, places] float32
    zeros: Tensor | None  # [groups of inputs, places] uint8
    is_e2m1: bool

    @classmethod
    def of(cls, weight: GroupedWeight) -> "CodedWeight":
        pairs = weight.codes[:, 0::2] | (weight.codes[:, 1::2] << 4)
        zeros = None if weight.zeros is None else _lines(weight.zeros)
        return cls(pairs, _lines(weight.scales), zeros, weight.is_e2m1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def group_size(self) -> int:
        return self.shape[1] // len(self.scales)

    @property
    def scales_of_tile(self) -> int:
        """Of each row, in TILE_INPUTS inputs."""
        return max(1, TILE_INPUTS // self.group_size)


def multiplies(weight: GroupedWeight) -> bool:
    """Whether products take `weight` as codes."""
    size, (outputs, inputs) = weight.group_size, weight.shape
    has_groups = size in (16, 32) or size % TILE_INPUTS == 0
    has_sizes = outputs % 2 == 0 and inputs % CHUNK_INPUTS == 0
    return weight.bits == 4 and weight.order is None and has_groups and has_sizes


def _lines(of_rows: Tensor) -> Tensor:
    """`of_rows` [rows, groups] transposed, with more places."""
    rows, groups = of_rows.shape
    places = -(-rows // TILE_COLUMNS) * TILE_COLUMNS + TILE_COLUMNS
    lines = torch.zeros((groups, places), dtype=of_rows.dtype, device=of_rows.device)
    lines[:, :rows] = of_rows.t()
    return lines
