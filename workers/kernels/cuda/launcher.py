"""Launches kernels on this process's CUDA device: NVRTC compiles cubins, CuPy loads them, and torch's stream runs them.

CuPy is used only here and in nvrtc.py, and both are imported only when a CUDA device is used. CuPy's memory pool and
current stream are not used: memory and streams are torch's.
"""

import ctypes
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .kernel import Grid, Kernel
from .requirements import architecture, check_compiler, check_driver, import_cupy

MAX_GRID = (2**31 - 1, 65535, 65535)


class Cubins(Protocol):
    """The folder of compiled kernels (nvrtc.CubinCache)."""

    def path(self, kernel: Kernel, arch: str) -> Path: ...


class CudaLauncher:
    """Launches on torch's current GPU, one per process; all calls except compilation are made by one thread."""

    def __init__(self, cupy: Any, cubins: Cubins, arch: str, stream_pointer: Callable[[], int]):
        self._cupy = cupy
        self._cubins = cubins
        self.arch = arch
        self._stream_pointer = stream_pointer
        self._functions: dict[Kernel, Any] = {}  # cupy.RawKernel
        self._streams: dict[int, Any] = {}  # CuPy's, by pointer
        self._dtypes: dict[type[ctypes.Structure], np.dtype[Any]] = {}

    @classmethod
    def for_current_device(cls, folder: Path) -> "CudaLauncher":
        """A launcher with cubins in `folder`. Raises ConfigError if GPU, driver, CuPy and NVRTC are incompatible."""
        device = torch.cuda.current_device()
        arch = architecture(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        cupy = import_cupy(torch.version.cuda)
        nvrtc = cupy.cuda.nvrtc.getVersion()
        check_driver(cupy.cuda.runtime.driverGetVersion(), nvrtc)
        check_compiler(arch, nvrtc, cupy.cuda.nvrtc.getSupportedArchs())
        cupy.cuda.Device(device).use()
        from .nvrtc import CubinCache

        return cls(cupy, CubinCache(folder), arch, lambda: torch.cuda.current_stream().cuda_stream)

    def load_all(self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile kernels without a cubin in parallel, then load all. Must precede the capture of a CUDA graph."""
        wanted = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self._functions))
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as compilers:
            paths = compilers.map(lambda kernel: self._cubins.path(kernel, self.arch), wanted)
            for loaded, (kernel, path) in enumerate(zip(wanted, paths, strict=True), start=1):
                self._functions[kernel] = self._load(kernel, path)
                if on_progress is not None:
                    on_progress(loaded, len(wanted))

    def launch(self, kernel: Kernel, grid: Grid, params: ctypes.Structure) -> None:
        # CuPy would silently replace a dimension of 0 by 1.
        assert all(1 <= size <= limit for size, limit in zip(grid, MAX_GRID, strict=True)), grid
        if kernel not in self._functions:
            self.load_all([kernel])
        argument = np.frombuffer(memoryview(params), self._dtype_of(type(params)))
        self._functions[kernel](
            grid, (kernel.threads, 1, 1), (argument,), shared_mem=kernel.shared_bytes, stream=self._current_stream()
        )

    def _load(self, kernel: Kernel, path: Path) -> Any:
        function = self._cupy.RawModule(path=str(path)).get_function(kernel.function)
        if kernel.shared_bytes:
            function.max_dynamic_shared_size_bytes = kernel.shared_bytes  # required beyond 48 KB
        else:
            function.compile()  # loads, as the assignment above does: a first launch in a graph must not load
        return function

    def _dtype_of(self, struct: type[ctypes.Structure]) -> np.dtype[Any]:
        """The dtype of an array of one struct, which CuPy passes by value."""
        if struct not in self._dtypes:
            self._dtypes[struct] = np.dtype(struct)
        return self._dtypes[struct]

    def _current_stream(self) -> Any:
        """Torch's current stream, queried at every launch, because a graph capture has a different one."""
        pointer = self._stream_pointer()
        if pointer not in self._streams:
            self._streams[pointer] = cupy_stream(self._cupy, pointer)
        return self._streams[pointer]


class _TorchStream:
    """A stream of torch in the protocol by which CuPy obtains its address."""

    def __init__(self, pointer: int):
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer  # (version of the protocol, address)


def cupy_stream(cupy: Any, pointer: int) -> Any:
    """A CuPy stream for torch's at `pointer`, by the interface of CuPy 14 or, deprecated there, of CuPy 13."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_TorchStream(pointer))
    return cupy.cuda.ExternalStream(pointer)
