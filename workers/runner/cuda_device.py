"""A rank's interface to its CUDA device, besides kernels: events on its stream, graphs and memory figures."""

from collections.abc import Callable

import torch

from .completions import DeviceEvent, PassedEvent

Replay = Callable[[], None]


def event_marker(device: str) -> Callable[[], DeviceEvent]:
    """A function that marks the end of the steps launched so far, for Steps.

    On the CPU they are complete. A CUDA device may still compute a chunk whose logits are not read.
    """
    return CudaDevice().mark if device == "cuda" else PassedEvent


class GraphPool:
    """Captures graphs that never run concurrently, so that they may share memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None]) -> Replay:
        """A function that repeats the launches of `run`; the capture itself computes nothing.

        `run` must have been called before: its first call compiles kernels and lets libraries choose theirs.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads (completions, NCCL's watchdog) wait for events meanwhile, which the default mode forbids.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        return graph.replay


class CudaDevice:
    """This process's current CUDA device."""

    def mark(self) -> DeviceEvent:
        """An event at the current end of the device's stream."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def graph_pool(self) -> GraphPool:
        return GraphPool()

    def total_bytes(self) -> int:
        return torch.cuda.mem_get_info()[1]

    def used_bytes(self) -> int:
        """Bytes in use by all processes and libraries, without torch's cached free memory."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """The peak of torch's allocations during `run`, in bytes beyond those before it."""
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
