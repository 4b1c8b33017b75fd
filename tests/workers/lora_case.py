"""A projection with adapters in places 1, 2, ..., for kernels of any platform; exact results in float64."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paged_serve.workers.batch.input_batch import AdapterGroups, adapter_groups
from paged_serve.workers.checkpoint.adapters.deltas import PANEL, Delta, Deltas, DeltaShape

from .portable_numbers import normals

TOLERANCES = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-18}
SCALE = 0.7


def table_of(places: Sequence[int], device: str = "cpu", most: int = 0) -> AdapterGroups:
    table, count = adapter_groups(np.array(places, np.int32), len(places))
    return AdapterGroups(torch.from_numpy(table).to(device), most or count)


class LoraCase:
    """Parts of `outputs` outputs each. Adapter i has rank `ranks[i - 1]`; of several parts it leaves out i % parts."""

    def __init__(
        self,
        inputs: int,
        outputs: tuple[int, ...],
        ranks: tuple[int, ...],
        dtype: torch.dtype,
        rows: int,
        *,
        is_table: bool = False,
        device: str = "cpu",
    ):
        self.inputs, self.outputs, self.ranks, self.dtype = inputs, outputs, ranks, dtype
        self.is_table, self.device = is_table, device
        self.tolerance = TOLERANCES[dtype]
        self._wide = normals((rows, inputs + 8), 1).to(dtype).to(device)
        self.x = self._wide[:, :inputs]  # rows are strided
        self.ids = torch.arange(rows, device=device) * 7 % inputs
        self.y = normals((rows, sum(outputs)), 2).to(dtype).to(device)
        self._matrices = {
            (place, part): (
                (normals((rank, inputs), 10 * place + part) / inputs**0.5).to(dtype),
                normals((size, rank), 10 * place + part + 5).to(dtype),
            )
            for place, rank in enumerate(ranks, start=1)
            for part, size in enumerate(outputs)
            if len(outputs) == 1 or part != place % len(outputs)
        }

    def deltas(self, segments: int = 1, share: int = 0, shares: int = 1) -> Deltas:
        """Those of one of several ranks that divide the inputs."""
        size = self.inputs // shares
        shape = DeltaShape(size, self.outputs, segments, self.is_table)
        deltas = Deltas(shape, len(self.ranks), max(self.ranks), self.dtype, self.device)
        for place in range(1, len(self.ranks) + 1):
            parts: list[Delta | None] = []
            for part in range(len(self.outputs)):
                pair = self._matrices.get((place, part))
                here = slice(share * size, (share + 1) * size)
                parts.append(None if pair is None else self._delta(shape, part, pair[0][:, here], pair[1]))
            deltas.put(place, parts)
        return deltas

    def _delta(self, shape: DeltaShape, part: int, a: Tensor, b: Tensor) -> Delta:
        rank = b.shape[1]
        size_a, size_b = shape.sizes(part, rank)
        held_a, held_b = torch.zeros(size_a, dtype=self.dtype), torch.zeros(size_b, dtype=self.dtype)
        held_a[:] = a.T if self.is_table else torch.nn.functional.pad(a, (0, 0, 0, size_a[0] - rank))
        for output, row in enumerate(b):
            held_b[output // PANEL, :, output % PANEL] = row
        return Delta(held_a.to(self.device), held_b.to(self.device), SCALE)

    def x_share(self, rows: Sequence[int], share: int, shares: int) -> Tensor:
        size = self.inputs // shares
        return self._wide[rows][:, share * size : (share + 1) * size]

    def exact(self, places: Sequence[int]) -> Tensor:
        exact = self.y.cpu().double()
        for row, place in enumerate(places):
            start = 0
            for part, size in enumerate(self.outputs):
                if (pair := self._matrices.get((place, part))) is not None:
                    a, b = (matrix.double() for matrix in pair)
                    own = a[:, self.ids[row]] if self.is_table else a @ self.x[row].cpu().double()
                    exact[row, start : start + size] += SCALE * (b @ own)
                start += size
        return exact
