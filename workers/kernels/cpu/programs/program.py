"""Replays recorded kernel calls by one call from Python."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from itertools import accumulate, chain

from ..library import Kernel, Pool
from ..parameters import ProgramParams, packer

PARAMS = packer(ProgramParams)
ALIGNMENT = 8  # bytes: the size of a pointer, the largest field of the structs

Call = tuple[str, bytes]  # (name of the kernel, packed parameters)


class Program:
    """A sequence of kernel calls with their packed parameters.

    The memory that the parameters point to must not move. Its contents may change between runs.
    """

    def __init__(self, pool: Pool, calls: Sequence[Call]):
        self._pool = pool
        aligned = [_aligned(params) for _, params in calls]
        self._params = ctypes.create_string_buffer(b"".join(aligned))
        starts = accumulate(map(len, aligned), initial=ctypes.addressof(self._params))
        pairs = ((pool.address(name), start) for (name, _), start in zip(calls, starts, strict=False))
        self._calls = (c_void_p * (2 * len(calls)))(*chain.from_iterable(pairs))  # KernelCall: function, parameters
        self._fields = PARAMS(ctypes.addressof(self._calls), len(calls))

    def run(self) -> None:
        self._pool.functions["run_program"](self._pool.handle, self._fields)


@contextmanager
def recorded_calls(pool: Pool) -> Iterator[list[Call]]:
    """Yields a list to which every kernel call inside the context is appended."""
    calls: list[Call] = []

    def watch(name: str, kernel: Kernel) -> Kernel:
        def call(handle: int, params: bytes) -> None:
            calls.append((name, params))
            kernel(handle, params)

        return call

    with pool.watched(watch):
        yield calls


def _aligned(params: bytes) -> bytes:
    return params.ljust(-(-len(params) // ALIGNMENT) * ALIGNMENT, b"\0")
