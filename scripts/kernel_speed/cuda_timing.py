"""Times a kernel on the device: calls recorded as one CUDA graph, on buffers that together exceed the L2 cache."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

SAMPLES = 25
SAMPLE_US = 500.0  # minimum duration of one graph
MAX_CALLS = 400
ROTATED_BYTES = 256 << 20  # several times the L2 cache of any device
MAX_COPIES = 16

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    median_us: float
    spread_us: float  # half the interquartile range


class Timer(Protocol):
    def time(self, calls: Sequence[Call]) -> Timing:
        """The time of one call; `calls` compute the same, each on its own buffers."""
        ...


def copies_of(nbytes: float) -> int:
    """How many copies of the buffers of a call exceed the L2 cache; a call touches `nbytes`."""
    return max(1, min(MAX_COPIES, -(-ROTATED_BYTES // max(1, int(nbytes)))))


class GraphTimer:
    """Times replays with events. CPU time is excluded; `bench_cuda.py launch` measures it."""

    def time(self, calls: Sequence[Call]) -> Timing:
        once_us = self._sample(self._recorded(calls)) / len(calls)
        rounds = max(1, min(MAX_CALLS // len(calls), round(SAMPLE_US / max(once_us, 0.1) / len(calls))))
        graph, count = self._recorded(list(calls) * rounds), len(calls) * rounds
        self._sample(graph)
        return timing([self._sample(graph) / count for _ in range(SAMPLES)])

    def _recorded(self, calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
        for call in calls:  # loads kernels that are not loaded yet
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph

    def _sample(self, graph: torch.cuda.CUDAGraph) -> float:
        """Microseconds of one replay."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) * 1000


class EagerTimer:
    """Times each call separately with the wall clock: for calls that a graph cannot record, and for trial runs."""

    def __init__(self, wait: Call, samples: int = SAMPLES):
        self._wait = wait
        self._samples = samples

    def time(self, calls: Sequence[Call]) -> Timing:
        calls[0]()
        self._wait()
        taken = []
        for index in range(self._samples):
            began = time.perf_counter()
            calls[index % len(calls)]()
            self._wait()
            taken.append((time.perf_counter() - began) * 1e6)
        return timing(taken)


def timing(taken_us: list[float]) -> Timing:
    if len(taken_us) < 2:
        return Timing(taken_us[0], 0.0)
    low, median, high = statistics.quantiles(taken_us, n=4)
    return Timing(median, (high - low) / 2)
