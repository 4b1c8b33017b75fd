"""Runs another machine's kernels under qemu and compares every call with this machine's kernels.

This process has its heap in memory that the emulated process maps at the same address (shared_heap.cpp is preloaded,
see test_neon.py), so the parameters of a call are passed on unchanged. A call runs here, and then there with the same
initial memory: afterwards every block of memory that it points to must have the same bits, except that NaN may differ.
"""

import ctypes
import os
import subprocess
from ctypes import c_size_t, c_void_p, string_at
from pathlib import Path
from typing import Any

import numpy as np

from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu import parameters
from paged_serve.workers.kernels.cpu.structs.kernels import KERNELS

is_emulated = "PAGED_SERVE_TEST_DRIVER" in os.environ  # test_neon.py
NAN_MAGNITUDE = {np.uint32: (0x7FFFFFFF, 0x7F800000), np.uint16: (0x7FFF, 0x7F80)}  # of float32 and bfloat16
FP16_NAN_MAGNITUDE = {**NAN_MAGNITUDE, np.uint16: (0x7FFF, 0x7C00)}


class Driver:
    """The emulated process, which answers one line per command (driver.cpp)."""

    def __init__(self, command: list[str], library: Path, heap_file: int):
        arguments = [*command, str(library), str(heap_file)]
        pipe = subprocess.PIPE
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._process = subprocess.Popen(
            arguments, stdin=pipe, stdout=pipe, pass_fds=[heap_file], text=True, env=environment
        )

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        assert answer, f"the emulated process ended with {self._process.wait()} at {words}"
        return answer


class EmulatedLibrary(cpu.Library):
    """This machine's library; an emulated library repeats its kernels' calls, and the emulated results are kept."""

    def __init__(self, reference: cpu.Library, driver: Driver):
        super().__init__(reference.path)
        self.driver = driver
        self._pools: dict[int, str] = {}
        self._heap = ctypes.CDLL(None)
        self._heap.shared_heap_block.restype = c_size_t
        self._heap.shared_heap_block.argtypes = [c_void_p, ctypes.POINTER(c_void_p)]
        self._names = {self.address(name): name for name in KERNELS}
        self.isa = driver.ask("name")
        for params in (parameters.PoolParams, *KERNELS.values()):
            assert driver.ask("size", params.__name__) == str(ctypes.sizeof(params)), params
        self.calls = dict.fromkeys(KERNELS, 0)  # number of compared calls
        here = self.functions
        self.functions = {name: self._both(name, kernel) for name, kernel in here.items()}
        self.functions["run_program"] = self._run_program

    def close(self) -> None:
        """End the emulated process, and report which kernels were compared."""
        self.driver.close()
        with Path(os.environ["PAGED_SERVE_TEST_COMPARED"]).open("a") as report:
            print(*(name for name, count in self.calls.items() if count), file=report)

    def create_pool(self, params: parameters.PoolParams) -> int:
        handle = super().create_pool(params)
        self._pools[handle] = self.driver.ask("pool", params.threads)
        return handle

    def destroy_pool(self, handle: int) -> None:
        super().destroy_pool(handle)
        self.driver.ask("close", self._pools.pop(handle))

    def _both(self, name: str, here: cpu.Kernel) -> cpu.Kernel:
        def call(handle: int, params: bytes | int) -> None:
            address = params if isinstance(params, int) else ctypes.cast(ctypes.c_char_p(params), c_void_p).value
            assert address
            blocks = self._blocks(KERNELS[name].from_address(address))
            before = [string_at(*block) for block in blocks]
            here(handle, address)
            expected = [string_at(*block) for block in blocks]
            for (first, _), content in zip(blocks, before, strict=True):
                ctypes.memmove(first, content, len(content))
            self.driver.ask("call", name, self._pools[handle], address)
            for block, old, wanted in zip(blocks, before, expected, strict=True):
                _compare(name, old, wanted, string_at(*block))
            self.calls[name] += 1

        return call

    def _run_program(self, handle: int, params: Any) -> None:
        """Run the calls separately, because addresses of kernels are not valid in the emulated process."""
        address = params if isinstance(params, int) else ctypes.cast(ctypes.c_char_p(params), c_void_p).value
        assert address
        program = parameters.ProgramParams.from_address(address)
        words = np.ctypeslib.as_array(ctypes.cast(program.calls, ctypes.POINTER(ctypes.c_uint64)), (program.count, 2))
        for kernel, call in words.tolist():
            self.functions[self._names[kernel]](handle, call)
        self.calls["run_program"] += 1

    def _blocks(self, params: ctypes.Structure) -> list[tuple[int, int]]:
        """(address, size) of each heap block to which a parameter points."""
        found: dict[int, int] = {}
        for field in params._fields_:
            value = getattr(params, field[0])
            if isinstance(value, ctypes.Structure):
                found.update(self._blocks(value))
            elif field[1] is c_void_p and value:
                first = c_void_p()
                size = self._heap.shared_heap_block(value, first)
                assert size, f"{field[0]} of {type(params).__name__} is not on the shared heap: {value:#x}"
                assert first.value
                found[first.value] = size
        return list(found.items())


def _compare(name: str, before: bytes, expected: bytes, found: bytes) -> None:
    """Assert that bits are equal, or both values are NaN: as float, or as the kernel's type of 16 bits."""
    if expected == found:
        return
    ours, theirs = (np.frombuffer(content, np.uint16) for content in (expected, found))
    differs = ours != theirs
    for kind, (magnitude, infinity) in (FP16_NAN_MAGNITUDE if "fp16" in name else NAN_MAGNITUDE).items():
        nan = [(np.frombuffer(content, kind) & magnitude) > infinity for content in (expected, found)]
        differs &= ~np.repeat(nan[0] & nan[1], np.dtype(kind).itemsize // 2)
    places = np.flatnonzero(differs)
    shown = [(int(at), hex(ours[at]), hex(theirs[at])) for at in places[:8]]
    written = sum(a != b for a, b in zip(before, expected, strict=True))
    assert not len(places), (
        f"{name}: {len(places)} of {written // 2} halves written differ, (place, here, there): {shown}"
    )


def load_emulated() -> EmulatedLibrary:
    """The emulated library given by the environment of test_neon.py: the driver's command and the library it loads."""
    command, library = os.environ["PAGED_SERVE_TEST_DRIVER"].split(), Path(os.environ["PAGED_SERVE_TEST_EMULATED"])
    reference = cpu.best_library()
    assert reference is not None
    return EmulatedLibrary(reference, Driver(command, library, ctypes.CDLL(None).shared_heap_file()))
