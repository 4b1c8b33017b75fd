"""The libraries built from csrc/cpu: the choice of one for this machine, and its pool of threads.

Each library has the same functions for one instruction set. If no library was built (no compiler at installation), the
torch backend is used.
"""

import ctypes
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Literal

from paged_serve.protocol.errors import ConfigError

from .parameters import PackPart, PoolParams
from .structs.kernels import KERNELS
from .structs.lora import LoraPart

FOLDER = Path(__file__).parents[2].resolve().parent / "csrc"
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
# Best first: a machine that runs one library also runs all libraries after it.
ISAS = ("neon_dotprod", "neon", "portable") if IS_ARM else ("amx", "avx512", "avx512fma", "avx2", "portable")
SAME_VECTORS = ("avx512", "avx512fma")  # they differ in products: VDPBF16PS, and fp32 FMA
READ_BYTES = 1 << 20  # the unit in which limits.cpp reads
PRODUCT_TIMES, PRODUCT_SAMPLES = 100, 9  # together a millisecond for two libraries
PEAK_FORMATS = ("bf16", "fp32", "int8", "amx_bf16", "amx_int8")
TILE_ORDER = {  # replacements of kernels that add products of 16-bit numbers, see csrc/cpu/tiles/tiles.h
    "gemm_bf16": "gemm_bf16_tile",
    "gemm_fp16": "gemm_fp16_tile",
    "gemm_int4": "gemm_int4_tile",
    "gemm_mxfp4": "gemm_mxfp4_tile",
    "gemm_fp8": "gemm_fp8_tile",
    "expert_gemm_bf16": "expert_gemm_bf16_tile",
    "expert_gemm_fp16": "expert_gemm_fp16_tile",
    "expert_gemm_int4": "expert_gemm_int4_tile",
    "expert_gemm_mxfp4": "expert_gemm_mxfp4_tile",
    "expert_gemm_fp8": "expert_gemm_fp8_tile",
    "attention_bf16": "attention_bf16_tile",
    "attention_int8": "attention_int8_tile",
    "head_gemm_bf16": "head_gemm_bf16_tile",
    "head_gemm_fp16": "head_gemm_fp16_tile",
    "latent_attention_bf16": "latent_attention_bf16_tile",
}
SPIN_US = 50  # time that an idle thread spins, longer than Python takes between two kernels of a step
Summation = Literal["auto", "dot", "tile"]
Kernel = Callable[[int, bytes], Any]  # called with a pool's handle and packed parameters


class Library:
    """One loaded library. `functions[name](pool, params)` runs a kernel, without the GIL."""

    def __init__(self, path: Path):
        self.path = path
        self._dll = ctypes.CDLL(str(path))
        self._dll.isa_name.restype = self._dll.machine_isa.restype = ctypes.c_char_p
        self._dll.pool_create.restype = c_void_p
        self._dll.pool_create.argtypes = [c_void_p]
        self._dll.pool_destroy.argtypes = [c_void_p]
        self._dll.pool_empty_runs.argtypes = [c_void_p, c_int32]
        self._dll.set_chunk_pieces.argtypes, self._dll.set_chunk_pieces.restype = [c_int32], None
        self._dll.read_memory.argtypes = [c_void_p, c_void_p, c_int64]
        self._dll.peak_operations.argtypes = [c_void_p, c_int32, c_int64]
        self._dll.product_operations.argtypes = [c_int64]
        self._dll.peak_operations.restype = self._dll.product_operations.restype = c_int64
        self.isa: str = self._dll.isa_name().decode()
        self.machine_isa: str = self._dll.machine_isa().decode()
        structs: set[type[ctypes.Structure]] = {PoolParams, PackPart, LoraPart, *KERNELS.values()}
        for params in structs:
            size = self._dll.struct_size(params.__name__.encode())
            if size != ctypes.sizeof(params):
                raise ConfigError(
                    f"{path} was built from different sources: its {params.__name__} has {size} bytes, not "
                    f"{ctypes.sizeof(params)}. Build it again: python setup.py build_ext --inplace"
                )
        self._dll.panel_block_bytes.argtypes, self._dll.panel_block_bytes.restype = [c_int32], c_int64
        functions = {name: getattr(self._dll, name) for name in KERNELS}
        for function in functions.values():
            function.restype, function.argtypes = None, [c_void_p, c_void_p]
        self.functions: dict[str, Kernel] = functions
        self._addresses = {name: ctypes.cast(function, c_void_p).value or 0 for name, function in functions.items()}

    def dot_is_fma(self) -> bool:
        """Whether bfloat16 products on this processor add in the order that all instruction sets have in common."""
        return bool(self._dll.dot_is_fma())

    def create_pool(self, params: PoolParams) -> int:
        handle = self._dll.pool_create(ctypes.byref(params))
        if not handle:
            raise ConfigError(
                f"the kernels for {self.isa!r} need AMX, which the system does not permit to this process; "
                "use --cpu-isa avx512, with --summation tile for the same bits"
            )
        return int(handle)

    def destroy_pool(self, handle: int) -> None:
        self._dll.pool_destroy(handle)

    def set_chunk_pieces(self, pieces: int) -> None:
        """How many pieces of K, 4 KB of a panel each, products in tile order take at a time: 1 to 8.

        The bits do not depend on it. No kernel may be running.
        """
        self._dll.set_chunk_pieces(pieces)

    def panel_block_bytes(self, block_format: int) -> int:
        """The bytes that a block of each output of a panel has there together; formats as in PRODUCT_FORMATS."""
        return int(self._dll.panel_block_bytes(block_format))

    def address(self, name: str) -> int:
        """The address of the kernel's code."""
        return self._addresses[name]

    def empty_runs(self, handle: int, times: int) -> None:
        self._dll.pool_empty_runs(handle, times)

    def read_memory(self, handle: int, address: int, nbytes: int) -> int:
        """Read `nbytes`, a multiple of READ_BYTES, as fast as the machine can; returns the XOR of their words."""
        assert nbytes % READ_BYTES == 0, nbytes
        return int(self._dll.read_memory(handle, address, nbytes))

    @property
    def peak_formats(self) -> tuple[str, ...]:
        """The PEAK_FORMATS for which the library has special instructions; it can also compute the others."""
        return PEAK_FORMATS if self.isa == "amx" else tuple(name for name in PEAK_FORMATS if not name.startswith("amx"))

    def peak_operations(self, handle: int, number_format: str, steps: int) -> int:
        """Multiply and add in registers as fast as the machine can; returns the number of operations."""
        return int(self._dll.peak_operations(handle, PEAK_FORMATS.index(number_format), steps))

    def product_rate(self) -> float:
        """This thread's operations per second in bfloat16 products as used in serving, measured in about 50 us."""
        began = time.perf_counter()
        done: int = self._dll.product_operations(PRODUCT_TIMES)
        return done / (time.perf_counter() - began)


def library_path(isa: str) -> Path:
    return FOLDER / f"_cpu_{isa}.so"


@cache
def runnable_isas() -> tuple[str, ...]:
    """The instruction sets whose library is built and runs on this machine, best first; empty if nothing was built.

    A library is left out if its dot instruction adds in another order than the others on this processor.
    """
    built = [isa for isa in ISAS if library_path(isa).exists()]
    if "portable" not in built:
        return ()
    best = load_library("portable").machine_isa
    able = [isa for isa in built if ISAS.index(isa) >= ISAS.index(best)]
    return tuple(isa for isa in able if load_library(isa).dot_is_fma())


@cache
def fastest_isa(runnable: tuple[str, ...]) -> str | None:
    """The first instruction set; of the two for AVX-512, which have the same bits, the one measured to be faster."""
    if runnable[:2] != SAME_VECTORS:
        return next(iter(runnable), None)
    return faster(*map(load_library, SAME_VECTORS)).isa


def faster(first: Library, second: Library) -> Library:
    """The library with the higher best rate; both are measured alternately, so that rising clocks favour neither."""
    rates = [(first.product_rate(), second.product_rate()) for _ in range(PRODUCT_SAMPLES)]
    return first if max(a for a, _ in rates) >= max(b for _, b in rates) else second


@cache
def load_library(isa: str) -> Library:
    return Library(library_path(isa))


def best_library(isa: str | None = None) -> Library | None:
    """The library for `isa`, by default the fastest that this machine runs; None if no library was built."""
    runnable = runnable_isas()
    if isa is None:
        fastest = fastest_isa(runnable)
        return load_library(fastest) if fastest else None
    if isa not in runnable:
        usable = ", ".join(("auto", *runnable, "torch"))
        raise ConfigError(
            f"cpu_isa={isa}: its kernels are not built, or do not run on this machine; use one of {usable}"
        )
    return load_library(isa)


def summation_of(library: Library, summation: Summation = "auto") -> Summation:
    """The order in which the library's kernels add 16-bit products: `summation`; for auto, the faster one."""
    if summation == "auto":
        return "tile" if library.isa == "amx" else "dot"
    return summation


class Pool:
    """The threads that run one process's kernels; the calling thread is one of them. One pool per process.

    Threads are pinned to `cpus` (by default all that the process may use), because two unpinned threads may run on one
    core. `pin_caller` pins the caller; threads that it starts afterwards inherit this, so torch's are started before.
    `summation` is the order of sums of 16-bit products; auto: the faster one.
    """

    def __init__(
        self,
        library: Library,
        cpus: Sequence[int] | None = None,
        *,
        pin_caller: bool = False,
        spin_us: int = SPIN_US,
        summation: Summation = "auto",
    ):
        chosen = sorted(os.sched_getaffinity(0)) if cpus is None else list(cpus)
        self.library = library
        self.num_threads = len(chosen)
        self.summation = summation_of(library, summation)
        self._replacements = TILE_ORDER if self.summation == "tile" else {}
        self.functions = {name: library.functions[self._replacements.get(name, name)] for name in library.functions}
        self.runs_programs = True
        array = (c_int32 * len(chosen))(*chosen)
        self.handle = library.create_pool(PoolParams(ctypes.addressof(array), len(chosen), pin_caller, spin_us))

    def address(self, name: str) -> int:
        """The address of the code that `functions[name]` runs."""
        return self.library.address(self._replacements.get(name, name))

    @contextmanager
    def watched(self, watch: Callable[[str, Kernel], Kernel], *, programs: bool = False) -> Iterator[None]:
        """Inside this context, each kernel is replaced by `watch(name, kernel)`.

        With `programs` a program counts as one kernel; otherwise programs are not used, so that every call is watched.
        """
        before = self.functions, self.runs_programs
        self.functions = {name: watch(name, function) for name, function in self.functions.items()}
        self.runs_programs = programs
        try:
            yield
        finally:
            self.functions, self.runs_programs = before

    def close(self) -> None:
        """End the threads. No kernel may be running, and none may be called afterwards."""
        if self.handle:
            self.library.destroy_pool(self.handle)
            self.handle = 0
