"""The kernels that a server launches, and what each may use of a multiprocessor."""

import ctypes
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from paged_serve.workers.kernels import cuda
from paged_serve.workers.kernels.cuda.kernel import FOLDER, Kernel

TENSOR_CORES = ("HMMA", "LDSM", "LDGSTS")  # products, matrix loads and asynchronous copies
TOOLS = {"selftest.cu"}  # what no server launches
SOURCES = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cu*"))}
STRUCTS = {  # the name of the struct of parameters of each kernel
    function: struct
    for source in SOURCES.values()
    for function, struct in re.findall(r"^KERNEL\((\w+), (\w+)\)", source, re.MULTILINE)
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of every variant of a kernel, on every architecture. 65,536 registers are a multiprocessor's."""

    registers: int
    instructions: tuple[str, ...] = ()  # that must be there


LIMITS = {
    "rms_norm": Limits(40),  # 1,024 threads: the whole block in 41,000 registers
}


def wrappers() -> Iterator[ModuleType]:
    """The modules that launch kernels, less the loader: it needs CuPy."""
    for module in pkgutil.iter_modules(cuda.__path__):
        if module.name not in ("nvrtc", "launcher"):
            yield importlib.import_module(f"{cuda.__name__}.{module.name}")


def production_kernels() -> list[Kernel]:
    return [kernel for wrapper in wrappers() for kernel in getattr(wrapper, "production_kernels", list)()]


def title(kernel: Kernel) -> str:
    return "-".join([kernel.function, *(str(value) for _, value in kernel.defines), str(kernel.threads)])


def mirror(struct: str) -> type[ctypes.Structure]:
    """The struct of parameters as Python has it."""
    found = {value for wrapper in wrappers() for name, value in vars(wrapper).items() if name == struct}
    assert len(found) == 1, f"{struct} is in {len(found)} modules of {cuda.__name__}"
    return found.pop()
