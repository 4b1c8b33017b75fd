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
        self._stream_pointer = stream_pointer  # queried at every launch: a graph capture has a stream of its own
        self._functions: dict[Kernel, Any] = {}  # cupy.cuda.Function, which keeps its module
        self._launch = cupy.cuda.driver.launchKernel  # cupy.RawKernel would take several times as long for each launch

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
        assert all(1 <= size <= limit for size, limit in zip(grid, MAX_GRID, strict=True)), grid
        if kernel not in self._functions:
            self.load_all([kernel])
        arguments = ctypes.c_void_p(ctypes.addressof(params))  # an array of one; the driver copies the struct
        block = kernel.threads, 1, 1
        stream, at = self._stream_pointer(), ctypes.addressof(arguments)
        self._launch(self._functions[kernel].ptr, *grid, *block, kernel.shared_bytes, stream, at, 0)

    def _load(self, kernel: Kernel, path: Path) -> Any:
        function = self._cupy.RawModule(path=str(path)).get_function(kernel.function)
        if kernel.shared_bytes:
            function.max_dynamic_shared_size_bytes = kernel.shared_bytes  # required beyond 48 KB
        return function.kernel  # loaded here: a first launch in a graph must not load
