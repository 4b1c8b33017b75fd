"""The ranks of one model and what they exchange. A group of one needs no process group."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class TensorParallelGroup:
    """This rank's end of the group; `TensorParallelGroup()` is a group of one.

    A sum must not depend on how many rows travel together. Ring and tree reductions split a tensor by its size, so
    sums are gathered and added in rank order instead; every rank sees the same bits.
    """

    def __init__(self, rank: int = 0, size: int = 1, process_group: Any = None):
        self.rank = rank
        self.size = size
        self._process_group = process_group

    @classmethod
    def join(
        cls, rank: int, size: int, rendezvous: str, device: str = "cpu", timeout_s: float = 300.0
    ) -> "TensorParallelGroup":
        """Meets the other ranks at the file `rendezvous`, which must be new for each incarnation of the group.

        Ranks talk gloo over the loopback interface on the CPU, nccl on CUDA. When a peer dies or stays silent for
        `timeout_s` the operation under way raises RuntimeError.
        """
        if size == 1:
            return cls()
        store: Any = getattr(dist, "FileStore")(rendezvous, size)  # noqa: B009  torch does not export it to type checkers
        if device == "cuda":
            nccl: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009  absent from CPU builds
            return cls(rank, size, nccl(store, rank, size, timedelta(seconds=timeout_s)))
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface="lo")]
        options._timeout = timedelta(seconds=timeout_s)
        return cls(rank, size, gloo(store, rank, size, options))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of every rank's `x`, added in rank order in float32 and rounded once to the dtype of `x`."""
        if self.size == 1:
            return x
        total, *others = self.stack(x).float().unbind()
        for part in others:
            total = total + part
        return total.to(x.dtype)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's `x`, of one shape on all, joined along `dim` in rank order."""
        return x if self.size == 1 else torch.cat(self.stack(x).unbind(), dim)

    def stack(self, x: Tensor) -> Tensor:
        """Every rank's `x`, of one shape on all, below each other: [ranks, *x.shape]."""
        stacked: Tensor = x.new_empty((self.size, *x.shape))
        if self.size == 1:
            stacked[0] = x
        else:
            self._process_group.allgather([list(stacked.unbind())], [x.contiguous()]).wait()
        return stacked

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        """The contiguous `x` of rank `source`, written into this rank's `x` and returned."""
        if self.size > 1:
            options = dist.BroadcastOptions()
            options.rootRank = source
            self._process_group.broadcast([x], options).wait()
        return x

    def close(self) -> None:
        """Leaves the group; nothing may be exchanged afterwards."""
        self._process_group = None
