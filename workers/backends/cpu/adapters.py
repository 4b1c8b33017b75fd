"""The AdapterOps of our CPU kernels."""

import torch
from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Deltas
from ...kernels.cpu.buffers import Buffers
from ...kernels.cpu.library import Pool
from ...kernels.cpu.lora.products import lora_announce, lora_expand, lora_look_up, lora_shrink


class CpuAdapterOps:
    def __init__(self, pool: Pool, buffers: Buffers):
        self._pool = pool
        self._buffers = buffers

    def announce(self, deltas: Deltas, groups: AdapterGroups) -> None:
        sums = self._buffers.take("adapters", (len(groups.table) - 1) // 4, deltas.width, torch.float32)
        lora_announce(self._pool, deltas, groups.table, sums)

    def shrink(self, deltas: Deltas, groups: AdapterGroups, x: Tensor) -> Tensor:
        sums = self._buffers.take("adapters", len(x), deltas.width, torch.float32)
        return lora_shrink(self._pool, deltas, groups.table, x, sums)

    def look_up(self, deltas: Deltas, groups: AdapterGroups, ids: Tensor) -> Tensor:
        sums = self._buffers.take("adapters", len(ids), deltas.width, torch.float32)
        return lora_look_up(self._pool, deltas, groups.table, ids, sums)

    def expand(self, deltas: Deltas, groups: AdapterGroups, shares: Tensor, y: Tensor) -> None:
        lora_expand(self._pool, deltas, groups.table, shares, y)
