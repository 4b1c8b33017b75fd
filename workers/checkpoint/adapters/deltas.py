"""What the adapters in memory add to one projection.

An adapter adds scale * B (A x). Sums are float32, and the result is added to the projection's, which is rounded once
more. A token without an adapter keeps its bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

RANK_BLOCK = 4  # ranks that kernels compute together
PANEL = 64  # outputs, likewise
ALIGNMENT = 64  # bytes
# LoraPart of csrc/cpu/lora/lora.h, and of csrc/cuda/lora/lora.cuh.
ENTRY = np.dtype([("a", np.int64), ("b", np.int64), ("rank", np.int32), ("scale", np.float32)])


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """A projection on one rank. Its outputs are those of several parts, each of which an adapter changes on its own."""

    inputs: int
    outputs: tuple[int, ...]  # of each part
    segments: int = 1  # of this rank's inputs, which are summed separately
    is_table: bool = False  # the inputs are token ids

    def sizes(self, part: int, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes in memory of A, zero-padded to blocks of ranks (a table is transposed), and of B's panels."""
        a = (self.inputs, rank) if self.is_table else (-(-rank // RANK_BLOCK) * RANK_BLOCK, self.inputs)
        return a, (-(-self.outputs[part] // PANEL), rank, PANEL)


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """What one adapter adds to one part, on the device."""

    a: Tensor  # as DeltaShape.sizes has it, in the model's dtype
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.b.shape[1]


class Deltas:
    """What every adapter in memory adds to one projection, by place. Kernels read `table`, whose address is fixed."""

    def __init__(self, shape: DeltaShape, num_places: int, max_rank: int, dtype: torch.dtype, device: str):
        self.shape = shape
        self.dtype = dtype
        self.max_rank = -(-max_rank // RANK_BLOCK) * RANK_BLOCK
        parts = len(shape.outputs)
        self.table = torch.zeros((num_places + 1, parts, ENTRY.itemsize), dtype=torch.uint8, device=device)
        self.starts = torch.tensor([0, *accumulate(shape.outputs)], dtype=torch.int32, device=device)  # [parts + 1]
        self.of_place: dict[int, Sequence[Delta | None]] = {}  # those in `table`

    @property
    def width(self) -> int:
        """The numbers of A x of a token: `max_rank` for each part."""
        return len(self.shape.outputs) * self.max_rank

    def put(self, place: int, deltas: Sequence[Delta | None]) -> None:
        """From the next step on, `place` holds these, one for each part; None adds nothing."""
        entries = np.zeros(len(self.shape.outputs), ENTRY)
        for entry, delta in zip(entries, deltas, strict=True):
            if delta is not None:
                entry["a"], entry["b"] = delta.a.data_ptr(), delta.b.data_ptr()
                entry["rank"], entry["scale"] = delta.rank, delta.scale
        self.table[place].copy_(torch.from_numpy(entries.view(np.uint8).reshape(self.table.shape[1:])))
        self.of_place[place] = deltas

    def clear(self, place: int) -> None:
        """`place` adds nothing."""
        if place in self.of_place:
            self.put(place, (None,) * len(self.shape.outputs))
            del self.of_place[place]
