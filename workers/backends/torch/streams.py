"""The StreamOps of plain torch on any device."""

import torch
from torch import Tensor

from ...layers.embedding import Table
from ...layers.streams.stream_ops import Deviations


class WideTable:
    def __init__(self, table: Table):
        self.num_rows = table.num_rows
        self._table = table

    def rows(self, indices: Tensor) -> Tensor:
        return self._table.rows(indices).float()


class TorchStreamOps:
    def __init__(self, device: str):
        self._device = device

    def deviations(self, size: int, dtype: torch.dtype, *, is_centred: bool) -> Deviations:
        def measured(x: Tensor) -> Tensor:
            wide = x.float()
            wide = wide - wide.mean(-1, keepdim=True) if is_centred else wide
            return wide.square().mean(-1, keepdim=True).sqrt()

        return measured

    def wide(self, table: Table) -> Table:
        return WideTable(table)

    def memory(self, role: str, rows: int, size: int) -> Tensor:
        return torch.empty((rows, size), device=self._device)

    def rounded(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype).contiguous()

    def mix(self, streams: Tensor, weights: Tensor, out: Tensor) -> Tensor:
        tokens = len(weights)
        each, into = streams.view(tokens, -1, streams.shape[1]), out.view(tokens, -1, out.shape[1])
        shares = weights.view(tokens, into.shape[1], each.shape[1], 1)
        into.copy_(shares[:, :, 0] * each[:, :1])
        for number in range(1, each.shape[1]):
            into.add_(shares[:, :, number] * each[:, number : number + 1])
        return out

    def scale_rows(self, x: Tensor, factors: Tensor, out: Tensor | None = None) -> Tensor:
        scaled = (x.float() * factors).to(x.dtype)
        return scaled if out is None else out.copy_(scaled)
