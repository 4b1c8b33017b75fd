"""What a rank asks of its CUDA device beside kernels: points on its stream, graphs, and how full its memory is."""

from collections.abc import Callable

import torch

from .completions import DeviceEvent

Replay = Callable[[], None]


class GraphPool:
    """Captures graphs that never run at once, so that what they allocate may lie at the same addresses."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None]) -> Replay:
        """What launches again all that `run` launches; while it is captured nothing of it is computed.

        `run` must have been called before: kernels are compiled and libraries choose their own in a first call.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads wait for events meanwhile (completions, nccl's watchdog), which the default mode forbids.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay


class CudaDevice:
    """This process's current one."""

    def mark(self) -> DeviceEvent:
        """The point that its stream has reached."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def graph_pool(self) -> GraphPool:
        return GraphPool()

    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info()[1]

    def used_bytes(self) -> int:
        """By all processes and libraries, without what torch keeps for later."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Of what torch allocates during `run`, beyond what it had before."""
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
