"""Collectives among the ranks of one model. A group of one needs no links."""

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from .memory import check_shared_memory
from .rank_links import RankLinks


class TensorParallelGroup:
    """This rank's member of the group; `TensorParallelGroup()` is a group of one rank.

    A row's sum must not depend on how many rows are reduced together. Ring and tree reductions split a tensor by its
    size, so the operands are gathered and added in rank order instead; every rank gets the same bits.
    """

    def __init__(self, rank: int = 0, size: int = 1, links: RankLinks | None = None, nccl: Any = None):
        self.rank = rank
        self.size = size
        self._links = links
        self._nccl = nccl

    @classmethod
    def join(
        cls, rank: int, size: int, rendezvous: str, device: str = "cpu", timeout_s: float = 300.0
    ) -> "TensorParallelGroup":
        """Meet the other ranks at the path `rendezvous`, which must be new for each incarnation of the group.

        Ranks communicate over unix sockets on the CPU: if a peer dies or is silent for `timeout_s`, the operation in
        progress raises RuntimeError. On CUDA they use nccl, whose operations only wait on the device: this process
        then makes no progress until the supervisor, which sees the death or the core's step time limit, kills it.
        """
        if size == 1:
            return cls()
        if device != "cuda":
            return cls(rank, size, RankLinks.join(rank, size, rendezvous, timeout_s))
        check_shared_memory()
        import torch.distributed as dist  # imported late: it takes 0.1 s, and only CUDA needs it

        store: Any = getattr(dist, "FileStore")(rendezvous, size)  # noqa: B009  torch hides it from type checkers
        nccl: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009  absent from CPU builds
        return cls(rank, size, nccl=nccl(store, rank, size, timedelta(seconds=timeout_s)))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of every rank's `x`, added in rank order in float32 and rounded once to the dtype of `x`."""
        if self.size == 1:
            return x
        total, *others = self.stack(x).float().unbind()
        for part in others:
            total = total + part
        return total.to(x.dtype)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's `x` (of the same shape on all), joined along `dim` in rank order."""
        return x if self.size == 1 else torch.cat(self.stack(x).unbind(), dim)

    def stack(self, x: Tensor) -> Tensor:
        """Every rank's `x` (of the same shape on all), stacked: [ranks, *x.shape]."""
        stacked: Tensor = x.new_empty((self.size, *x.shape))
        if self._nccl is not None:
            self._nccl.allgather([list(stacked.unbind())], [x.contiguous()]).wait()
            return stacked
        stacked[self.rank] = x
        if self._links is not None and x.numel():
            self._links.exchange([_bytes_of(part) for part in stacked])
        return stacked

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        """Copy the contiguous `x` of rank `source` into this rank's `x`, and return it."""
        if self._nccl is not None:
            import torch.distributed as dist

            options = dist.BroadcastOptions()
            options.rootRank = source
            self._nccl.broadcast([x], options).wait()
        elif self._links is not None and x.numel():
            if self.rank == source:
                self._links.send(_bytes_of(x))
            else:
                self._links.receive(source, _bytes_of(x))
        return x

    def close(self) -> None:
        """Leave the group; no collective may be called afterwards."""
        self._nccl = None
        if self._links is not None:
            self._links.close()


def _bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(x.view(-1).view(torch.uint8).numpy().data)
