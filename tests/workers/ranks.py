"""Tensor-parallel ranks in one process, a thread each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.process.arithmetic import arithmetic
from paged_serve.workers.runner.model_runner import ModelRunner

from .tiny_models.checkpoints import ours

Result = TypeVar("Result")


class Ranks:
    """A group of `size` ranks, which meet at the new file `rendezvous` or by `join`."""

    def __init__(self, size: int, rendezvous: Path, join: Callable[[int], TensorParallelGroup] | None = None):
        self._size = size
        self._threads = ThreadPoolExecutor(size, initializer=partial(torch.set_num_threads, 1))
        join = join or partial(TensorParallelGroup.join, size=size, rendezvous=str(rendezvous), timeout_s=60)
        self._groups = list(self._threads.map(join, range(size)))

    def on_each(self, work: Callable[[TensorParallelGroup], Result]) -> list[Result]:
        """Run `work(group)` on all ranks concurrently; results are in rank order."""
        return list(self._threads.map(work, self._groups))

    def close(self) -> None:
        for group in self._groups:
            group.close()
        self._threads.shutdown()


def on_ranks(size: int, rendezvous: Path, work: Callable[[TensorParallelGroup], Result]) -> list[Result]:
    ranks = Ranks(size, rendezvous)
    try:
        return ranks.on_each(work)
    finally:
        ranks.close()


def arithmetic_of_ranks(
    folder: Path, make_pool: Callable[[], Pool | None], tmp_path: Path
) -> tuple[str, list[list[str]]]:
    """Of the model on one rank; and on each of two, loaded as it is, then packed to a file, then from that file."""
    pool, pools = make_pool(), [make_pool(), make_pool()]
    kept = {"packed_weights_dir": str(tmp_path)}

    def on_rank(group: TensorParallelGroup) -> list[str]:
        own = pools[group.rank]
        return [arithmetic(ours(folder, group=group, pool=own, **more), 2, own) for more in ({}, kept, kept)]

    return arithmetic(ours(folder, pool=pool), 1, pool), on_ranks(2, tmp_path / "rendezvous", on_rank)


class SharedModel:
    """A model that each rank of a group has loaded."""

    def __init__(self, ranks: Ranks, load: Callable[[TensorParallelGroup], Model]):
        self.ranks = ranks
        self.of_rank = ranks.on_each(load)

    @property
    def geometry(self):
        return self.of_rank[0].geometry

    @property
    def tp_size(self):
        return self.of_rank[0].tp_size

    @property
    def pooling(self):
        return self.of_rank[0].pooling

    def runner(self, new_runner: Callable[[Model, TensorParallelGroup], ModelRunner]) -> "SharedRunner":
        return SharedRunner(self.ranks, self.ranks.on_each(lambda group: new_runner(self.of_rank[group.rank], group)))


class SharedRunner:
    """The runners of all ranks; results are those of rank 0."""

    def __init__(self, ranks: Ranks, of_rank: list[ModelRunner]):
        self._ranks = ranks
        self._of_rank = of_rank

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        outputs = self._ranks.on_each(lambda group: self._of_rank[group.rank].execute(plan))
        assert all(output.token_ids == outputs[0].token_ids for output in outputs)
        return outputs[0]
