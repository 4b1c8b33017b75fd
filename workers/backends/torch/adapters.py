"""The AdapterOps of plain torch: every row on its own, in float32."""

import torch
from torch import Tensor

from ...batch.input_batch import AdapterGroups
from ...checkpoint.adapters.deltas import Delta, Deltas


class TorchAdapterOps:
    def announce(self, deltas: Deltas, groups: AdapterGroups, x: Tensor, divided: bool) -> None:
        """Nothing: products compute nothing for others."""

    def shrink(self, deltas: Deltas, groups: AdapterGroups, x: Tensor) -> Tensor:
        sums = x.new_zeros((len(x), deltas.width), dtype=torch.float32)
        for row, part, delta in _each(deltas, groups):
            product = delta.a.float() * x[row].float()
            at = part * deltas.max_rank
            sums[row, at : at + len(product)] = product.sum(1)
        return sums

    def look_up(self, deltas: Deltas, groups: AdapterGroups, ids: Tensor) -> Tensor:
        sums = torch.zeros((len(ids), deltas.width), dtype=torch.float32, device=ids.device)
        for row, _, delta in _each(deltas, groups):
            sums[row, : delta.rank] = delta.a[ids[row]]
        return sums

    def expand(self, deltas: Deltas, groups: AdapterGroups, shares: Tensor, y: Tensor) -> None:
        sums = shares.sum(0)
        for row, part, delta in _each(deltas, groups):
            start, outputs = int(deltas.starts[part]), deltas.shape.outputs[part]
            at = part * deltas.max_rank
            factors = sums[row, at : at + delta.rank].unsqueeze(1) * delta.scale
            added = (delta.b.float() * factors).sum(1).flatten()[:outputs]
            here = slice(start, start + outputs)
            y[row, here] = (y[row, here].float() + added).to(y.dtype)


def _each(deltas: Deltas, groups: AdapterGroups) -> list[tuple[int, int, Delta]]:
    """Each grouped row with each part that its adapter changes."""
    return [
        (row, part, delta)
        for place, rows in groups.on_host()
        for part, delta in enumerate(deltas.of_place.get(place, ()))
        if delta is not None
        for row in rows
    ]
