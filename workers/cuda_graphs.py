"""A decode step as one CUDA graph for each of a ladder of batch sizes: the launches of a step cost the host nothing."""

from collections.abc import Callable

import torch
from torch import Tensor

SMALL = (1, 2, 4)
STEP = 8  # between larger sizes, so that few rows are padding


def ladder(max_rows: int) -> list[int]:
    """The numbers of rows that are captured, ascending; the last is `max_rows`."""
    sizes = {*SMALL, *range(STEP, max_rows, STEP), max_rows}
    return sorted(size for size in sizes if size <= max_rows)


class CudaGraphs:
    """The DecodeStep of a CUDA device. A size is captured when it is first asked for.

    What a graph reads and writes stays where it is: staged arrays, rows, weights and cache; what it allocates lies in a
    pool that all sizes share, since one step runs at a time. Logits are valid until the next step.
    """

    def __init__(self, max_rows: int):
        self._ladder = ladder(max_rows)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def padded(self, num_rows: int) -> int:
        return next(size for size in self._ladder if size >= num_rows)

    def __call__(self, num_rows: int, run: Callable[[], Tensor]) -> Tensor:
        if num_rows not in self._graphs:
            return self._capture(num_rows, run)
        graph, logits = self._graphs[num_rows]
        graph.replay()
        return logits

    def unprepared(self) -> int | None:
        """The largest first: smaller ones find room in its memory."""
        return next((size for size in reversed(self._ladder) if size not in self._graphs), None)

    def _capture(self, num_rows: int, run: Callable[[], Tensor]) -> Tensor:
        """The step itself is done before, without a graph: kernels are compiled and libraries choose their own then.

        It writes the same keys and values to the same slots as the capture's first replay would.
        """
        logits = run().clone()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            kept = run()
        self._graphs[num_rows] = graph, kept
        return logits
