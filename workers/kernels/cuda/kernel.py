"""The description of a kernel before compilation, and the interface of launchers."""

import ctypes
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

FOLDER = Path(__file__).parents[2].resolve().parent / "csrc" / "cuda"
SCALARS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "float"}  # names of device.cuh
LOG2_E = math.log2(math.e)  # kernels compute powers of two
Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function of one .cu file, specialised by the macros `defines`, THREADS and SHARED_BYTES.

    The function takes one struct of parameters by value. `shared_bytes` is its dynamic shared memory; the source
    asserts that it needs exactly this.
    """

    file: str  # below csrc/cuda: "sampler/cut.cu"
    function: str
    defines: tuple[tuple[str, int | str], ...]
    threads: int
    shared_bytes: int = 0

    @property
    def options(self) -> list[str]:
        """The macros as compiler options."""
        macros = (*self.defines, ("THREADS", self.threads), ("SHARED_BYTES", self.shared_bytes))
        return [f"-D{name}={value}" for name, value in macros]


def pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class Launcher(Protocol):
    """Launches kernels. A kernel is compiled and loaded at its first launch, unless `load_all` has loaded it."""

    def load_all(self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Compile and load without a launch; calls `on_progress(loaded, of)` after each, in the caller's thread."""
        ...

    def launch(self, kernel: Kernel, grid: Grid, params: ctypes.Structure) -> None:
        """Put `kernel` on the current stream. Grid dimensions are at least 1; `params` is copied."""
        ...
