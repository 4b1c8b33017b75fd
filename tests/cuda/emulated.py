"""A Launcher that runs kernels in the emulator, on CPU tensors."""

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paged_serve.workers.kernels.cuda.kernel import FOLDER, Grid, Kernel

EMULATOR = Path(__file__).parent / "emulator"
CACHE = Path(__file__).parents[2] / "build" / "emulator"
COMPILER = shutil.which("g++")
OPTIONS = (
    # -O2 takes 1.5 times as long to compile, and the emulated kernels are no faster.
    *("-x", "c++", "-std=c++20", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-w"),
    *("-fPIC", "-Wl,-Bsymbolic", "-fno-gnu-unique", "-DEMULATOR"),  # each library has its own emulator
)
ASCENDING, DESCENDING, RANDOM = range(3)


class Dim3(ctypes.Structure):
    _fields_ = tuple((axis, ctypes.c_uint) for axis in "xyz")


class Stats(ctypes.Structure):
    """Statistics of the launches since `schedule`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("switches", "products", "matrix_loads", "bank_conflicts"))


class EmulatorError(RuntimeError):
    """A kernel did something forbidden; the text names the line."""


@dataclass(frozen=True)
class Schedule:
    """The order in which warps run, and whether asynchronous copies complete at once or as late as possible."""

    order: int = ASCENDING
    late_copies: bool = True
    seed: int = 1


SCHEDULES = (
    Schedule(),
    Schedule(late_copies=False),
    Schedule(DESCENDING),
    Schedule(RANDOM),
    Schedule(RANDOM, late_copies=False, seed=7),
)


class EmulatorLauncher:
    """The emulator for the sources in `folder`: csrc/cuda, or a copy in which a test plants bugs."""

    def __init__(self, folder: Path = FOLDER, schedule: Schedule = SCHEDULES[0], options: tuple[str, ...] = ()):
        self.schedule = schedule
        self.stats = Stats()  # of all launches
        self._folder = folder
        self._options = (*OPTIONS, *options)
        self._libraries: dict[Kernel, ctypes.CDLL] = {}
        self._one_at_a_time = threading.Lock()  # a library has the state of one launch

    def load_all(self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Does nothing: a launch compiles the kernel, and compares its struct of parameters with the source's."""

    def launch(self, kernel: Kernel, grid: Grid, params: ctypes.Structure) -> None:
        with self._one_at_a_time:
            self._launch(kernel, grid, params)

    def _launch(self, kernel: Kernel, grid: Grid, params: ctypes.Structure) -> None:
        if kernel not in self._libraries:
            self._libraries[kernel] = self._load(kernel, type(params))
        library = self._libraries[kernel]
        library.emulator_schedule(
            self.schedule.order, int(self.schedule.late_copies), ctypes.c_uint64(self.schedule.seed)
        )
        assert min(grid) >= 1, grid
        run = getattr(library, kernel.function)
        run.restype = ctypes.c_char_p
        size, block = Dim3(*grid), Dim3(kernel.threads, 1, 1)
        error = run(*map(ctypes.byref, (params, size, block)), ctypes.c_uint64(kernel.shared_bytes))
        stats = Stats()
        library.emulator_stats(ctypes.byref(stats))
        for name, _ in Stats._fields_:
            setattr(self.stats, name, getattr(self.stats, name) + getattr(stats, name))
        if error:
            raise EmulatorError(f"{kernel.function}: {error.decode()}")

    def _load(self, kernel: Kernel, params: type[ctypes.Structure]) -> ctypes.CDLL:
        library = ctypes.CDLL(str(self._build(kernel)))
        bytes_of_params = getattr(library, f"{kernel.function}_params_bytes")
        bytes_of_params.restype = ctypes.c_uint64
        assert bytes_of_params() == ctypes.sizeof(params), f"{params.__name__} is not the struct of {kernel.function}"
        return library

    def _build(self, kernel: Kernel) -> Path:
        return (library_of_checkout if self._folder == FOLDER else library)(self._folder, kernel, self._options)


def library(folder: Path, kernel: Kernel, options: tuple[str, ...]) -> Path:
    """The kernel of the sources in `folder`, which is compiled now if it has not been."""
    of_kernel = [*options, *kernel.options]
    key = key_of(included(folder, kernel.file) | set(EMULATOR.iterdir()), [kernel.file, *of_kernel])
    command = [*of_kernel, "-include", str(precompiled_headers(options)), f"-I{EMULATOR}", f"-I{folder}"]
    source, objects = str(folder / kernel.file), [str(path) for path in emulator_objects(options)]
    return built(CACHE / f"{kernel.function}-{key}.so", [*command, "-shared", source, "-x", "none", *objects])


# Sources of the checkout do not change meanwhile; to read them for each launcher took longer than many tests.
library_of_checkout = cache(library)


def precompiled_headers(options: tuple[str, ...]) -> Path:
    """A header that includes the emulator's; what g++ makes of it lies beside it, and spares each kernel that."""
    path = CACHE / f"emulator-{key_of(included(EMULATOR, 'cuda_emulator.h'), options)}.h"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        temporary = Path(f"{path}.{os.getpid()}")
        temporary.write_text('#include "cuda_emulator.h"\n')
        temporary.replace(path)
    # Without -c, g++ would take it for a source and link it: each kernel would include the headers again, unnoticed.
    command = [*options, f"-I{EMULATOR}", "-c", "-x", "c++-header", str(path)]
    assert built(path.with_suffix(".h.gch"), command).read_bytes()[:4] == b"gpch", "not a precompiled header"
    return path


def emulator_objects(options: tuple[str, ...]) -> Iterator[Path]:
    """What every kernel's library has of the emulator, compiled once."""
    for source in sorted(EMULATOR.glob("*.cpp")):
        key = key_of(included(EMULATOR, source.name), options)
        yield built(CACHE / f"emulator-{source.stem}-{key}.o", [*options, "-c", str(source)])


def key_of(sources: set[Path], options: Iterable[str]) -> str:
    contents = sorted((path.name, path.read_bytes()) for path in sources)
    return hashlib.sha256(repr((contents, list(options))).encode()).hexdigest()[:24]


def built(path: Path, command: list[str]) -> Path:
    """The file that g++ makes; of processes that want it at the same time one makes it."""
    assert COMPILER, "the emulator needs g++"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                temporary = Path(f"{path}.{os.getpid()}")
                command = [COMPILER, *command, "-o", str(temporary)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise EmulatorError(f"{command[-3]} does not compile: {done.stderr[:2000]}")
                temporary.replace(path)
    return path


def included(folder: Path, name: str) -> set[Path]:
    """A source of `folder` and all files that it includes, directly or indirectly, from `folder` or the emulator."""
    found, left = set(), [folder / name]
    while left:
        if (path := left.pop()) in found:
            continue
        found.add(path)
        names = re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
        left += [file for name in names for file in (folder / name, EMULATOR / name) if file.exists()]
    return found
