"""Decode steps as CUDA graphs, one per batch size of a ladder: a step costs the host one launch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from ..layers.decode_step import Inputs, Logits
from .cuda_device import GraphPool, Replay

SMALL = (1, 2, 4)
STEP = 8  # rows between larger sizes, so that few rows are padding


def ladder(max_rows: int) -> list[int]:
    """The numbers of rows that are captured, ascending; the last is `max_rows`."""
    sizes = {*SMALL, *range(STEP, max_rows, STEP), max_rows}
    return sorted(size for size in sizes if size <= max_rows)


class CudaGraphs:
    """The DecodeStep of a CUDA device. All sizes are captured before the first step, and none later.

    Before a capture the step runs once for real, with its exchanges between ranks. Ranks must capture in one order:
    otherwise exchanges of different steps pair up, which NCCL does not detect. Everything that a graph reads or writes
    keeps its address: staged arrays, rows, weights, cache and logits.
    """

    def __init__(self, ladder: Sequence[int], pool: GraphPool):
        self._ladder = ladder
        self._pool = pool
        self._replays: dict[int, Replay] = {}
        self._logits: dict[int, Tensor] = {}  # where each graph leaves its result

    @property
    def sizes(self) -> Sequence[int]:
        """Largest first: the smaller graphs fit into its memory."""
        return self._ladder[::-1]

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        def run() -> None:
            self._logits[num_rows] = logits(inputs())

        run()
        self._replays[num_rows] = self._pool.capture(run)

    def padded(self, num_rows: int) -> int:
        return next(size for size in self._ladder if size >= num_rows)

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        self._replays[num_rows]()
        return self._logits[num_rows]

    def verify(self, inputs: Inputs, logits: Logits) -> Tensor:
        return logits(inputs())  # without a graph

    def queue(self) -> AbstractContextManager[object]:
        return nullcontext()
