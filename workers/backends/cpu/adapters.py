"""The AdapterOps of our CPU kernels."""

import torch
from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Deltas
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.library import Pool
from ...kernels.cpu.lora.products import lora_announce, lora_expand, lora_look_up, lora_shrink

LARGEST_EARLY_STEP = 256  # rows; larger ones have few adapters or take so long that adapters cost little


class CpuAdapterOps:
    def __init__(self, pool: Pool, buffers: Buffers):
        self._pool = pool
        self._buffers = buffers

    def announce(self, deltas: Deltas, groups: AdapterGroups, x: Tensor, divided: bool) -> None:
        sums = self._buffers.take("adapters", len(x), deltas.width, torch.float32)
        early = None if divided else self._early(deltas, len(x))
        lora_announce(self._pool, deltas, groups.table, x, sums, early)

    def shrink(self, deltas: Deltas, groups: AdapterGroups, x: Tensor) -> Tensor:
        sums = self._buffers.take("adapters", len(x), deltas.width, torch.float32)
        return lora_shrink(self._pool, deltas, groups.table, x, sums)

    def look_up(self, deltas: Deltas, groups: AdapterGroups, ids: Tensor) -> Tensor:
        sums = self._buffers.take("adapters", len(ids), deltas.width, torch.float32)
        return lora_look_up(self._pool, deltas, groups.table, ids, sums)

    def expand(self, deltas: Deltas, groups: AdapterGroups, shares: Tensor, y: Tensor) -> None:
        early = self._early(deltas, len(y)) if len(shares) == 1 else None
        lora_expand(self._pool, deltas, groups.table, shares, y, early)

    def _early(self, deltas: Deltas, rows: int) -> Tensor | None:
        outputs = sum(deltas.shape.outputs)
        return self._buffers.take("early", rows, outputs, torch.float32) if rows <= LARGEST_EARLY_STEP else None
