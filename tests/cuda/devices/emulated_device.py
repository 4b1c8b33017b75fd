"""Emulates a rank's CUDA device, stream, graphs and nccl on the CPU; the emulator runs the kernels.

A capture records launches without computing them, and refuses operations that a real capture refuses. Memory that it
allocates is overwritten before and after each replay, like memory that other graphs share.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from threading import Condition
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paged_serve.workers.distributed.rank_links import RankLinks
from paged_serve.workers.kernels.cuda.kernel import Grid, Kernel, Launcher
from paged_serve.workers.runner.completions import PassedEvent

Call = Callable[[], object]
WAITING = {  # operations that read a device's memory on the host
    getattr(Tensor, name)
    for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__")
}
WAITING |= {torch.nonzero, torch.masked_select, torch.unique, torch.equal, torch.allclose}
PATIENCE_S = 60.0


class CaptureError(RuntimeError):
    """An operation that cannot be captured; the text names it."""


class ExchangeError(RuntimeError):
    """Ranks called different collectives. nccl would not detect this: it hangs, or mixes up the data."""


class Stream:
    """The launches of a rank in order: they are executed at once, or recorded during a capture."""

    def __init__(self) -> None:
        self.recorded: list[Call] | None = None  # while a graph is captured

    def put(self, call: Call) -> None:
        if self.recorded is None:
            call()
        else:
            self.recorded.append(call)


class StreamLauncher:
    """Launches kernels on a stream. Ranks share the emulator, which runs one launch at a time."""

    def __init__(self, emulator: Launcher, stream: Stream):
        self._emulator = emulator
        self._stream = stream

    def load_all(self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None) -> None:
        self._emulator.load_all(kernels, on_progress)

    def launch(self, kernel: Kernel, grid: Grid, params: ctypes.Structure) -> None:
        copied = type(params).from_buffer_copy(params)
        self._stream.put(partial(self._emulator.launch, kernel, grid, copied))


class Refusals(TorchFunctionMode):
    """Raises CaptureError for operations that wait for the device, or allocate memory that a graph cannot use."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in WAITING:
            raise CaptureError(f"{func.__name__} waits for the device while a graph is captured")
        if func is Tensor.pin_memory or kwargs.get("pin_memory"):
            raise CaptureError("pinned memory is allocated while a graph is captured")
        return func(*args, **kwargs)


class Recorder(TorchDispatchMode):
    """Records torch's operations on the stream; their result tensors exist, but are not computed."""

    def __init__(self, stream: Stream):
        super().__init__()
        self._stream = stream
        self.temporaries: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [
            kwargs[argument.name] if argument.name in kwargs else args[place]
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if written:
            self._stream.put(partial(func, *args, **kwargs))
            return written[0] if len(written) == 1 else tuple(written)
        result = func(*args, **kwargs)
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        fresh = [leaf for leaf in tree_leaves(result) if leaf.untyped_storage().data_ptr() not in known]
        if fresh:
            assert len(fresh) == len(tree_leaves(result)), f"{func} returns both views and new tensors"
            self.temporaries += fresh
            if "empty" not in func._schema.name:
                self._stream.put(partial(_again, func, args, kwargs, fresh))
        spoil(fresh)
        return result


def _again(func: Any, args: Any, kwargs: Any, results: list[Tensor]) -> None:
    for result, values in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
        result.copy_(values)


def spoil(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))


class EmulatedPool:
    """A GraphPool."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self.num_captured = 0

    @torch.inference_mode()
    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        calls: list[Call] = []
        self._stream.recorded = calls
        try:
            with Refusals(), Recorder(self._stream) as recorder:
                run()
        finally:
            self._stream.recorded = None
        temporaries = recorder.temporaries
        self.num_captured += 1

        @torch.inference_mode()
        def replay() -> None:
            assert self._stream.recorded is None, "a graph was replayed while another is captured"
            for call in calls:
                call()
            spoil(temporaries)

        return replay


class EmulatedDevice:
    """A CudaDevice without memory figures."""

    def __init__(self, stream: Stream | None = None):
        self.stream = stream or Stream()
        self._pools: list[EmulatedPool] = []

    def mark(self) -> PassedEvent:
        return PassedEvent()

    def graph_pool(self) -> EmulatedPool:
        self._pools.append(EmulatedPool(self.stream))
        return self._pools[-1]

    @property
    def num_captured(self) -> int:
        return sum(pool.num_captured for pool in self._pools)


class Arrivals:
    """Makes the ranks of one process enter each collective one after another, in a random order drawn from the seed."""

    def __init__(self, size: int, seed: int):
        self._seed = seed
        self._counts = [0] * size
        self._changed = Condition()

    def arrive(self, rank: int) -> None:
        with self._changed:
            number = self._counts[rank]
            order = Random(f"{self._seed} {number}").sample(range(len(self._counts)), len(self._counts))
            earlier = order[: order.index(rank)]
            come = self._changed.wait_for(lambda: all(self._counts[o] > number for o in earlier), PATIENCE_S)
            if not come:
                raise ExchangeError(f"rank {rank} entered collective {number}, but not all others did")
            self._counts[rank] += 1
            self._changed.notify_all()


class Done:
    def wait(self) -> None:
        pass


class EmulatedNccl:
    """The calls of ProcessGroupNCCL that a TensorParallelGroup makes, over CPU links, on a stream."""

    def __init__(self, rank: int, size: int, links: RankLinks, stream: Stream, arrivals: Arrivals | None = None):
        self._rank = rank
        self._size = size
        self._links = links
        self._stream = stream
        self._arrivals = arrivals

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Done:
        self._stream.put(partial(self._gather, outputs[0], inputs[0]))
        return Done()

    def broadcast(self, tensors: list[Tensor], options: Any) -> Done:
        self._stream.put(partial(self._broadcast, tensors[0], options.rootRank))
        return Done()

    def _gather(self, parts: Sequence[Tensor], mine: Tensor) -> None:
        self._meet("allgather", mine)
        parts[self._rank].copy_(mine)
        if mine.numel():
            self._links.exchange([_bytes_of(part) for part in parts])

    def _broadcast(self, x: Tensor, source: int) -> None:
        self._meet("broadcast", x)
        if x.numel() == 0:
            return
        if self._rank == source:
            self._links.send(_bytes_of(x))
        else:
            self._links.receive(source, _bytes_of(x))

    def _meet(self, kind: str, x: Tensor) -> None:
        """Check that all ranks are in the same collective."""
        if self._arrivals is not None:
            self._arrivals.arrive(self._rank)
        sent = f"{kind} {x.dtype} {list(x.shape)}".encode().ljust(64)
        received = [bytearray(sent) for _ in range(self._size)]
        self._links.exchange([memoryview(one) for one in received])
        if len(different := sorted({bytes(one).decode().rstrip() for one in received})) > 1:
            raise ExchangeError(f"ranks are in different collectives: {'; '.join(different)}")


def _bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    assert x.is_contiguous()
    return memoryview(x.view(-1).view(torch.uint8).numpy().data)
