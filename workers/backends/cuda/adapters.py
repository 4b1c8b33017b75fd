"""The AdapterOps of our CUDA kernels."""

import torch
from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Deltas
from ...kernels.cuda.kernel import Launcher
from ...kernels.cuda.lora import lora_expand, lora_look_up, lora_shrink


class CudaAdapterOps:
    def __init__(self, launcher: Launcher):
        self._launcher = launcher

    def announce(self, deltas: Deltas, groups: AdapterGroups, x: Tensor, divided: bool) -> None:
        """Nothing: products compute nothing for others."""

    def shrink(self, deltas: Deltas, groups: AdapterGroups, x: Tensor) -> Tensor:
        sums = torch.empty((len(x), deltas.width), dtype=torch.float32, device=x.device)
        return lora_shrink(self._launcher, deltas, groups, x, sums)

    def look_up(self, deltas: Deltas, groups: AdapterGroups, ids: Tensor) -> Tensor:
        sums = torch.empty((len(ids), deltas.width), dtype=torch.float32, device=ids.device)
        return lora_look_up(self._launcher, deltas, groups, ids, sums)

    def expand(self, deltas: Deltas, groups: AdapterGroups, shares: Tensor, y: Tensor) -> None:
        lora_expand(self._launcher, deltas, groups, shares, y)
