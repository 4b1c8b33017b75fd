"""Imports torch without parts that a worker seldom uses: a third of its time. They are imported when they are used."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# Where a later torch has renamed one of these, nothing is saved.
OF_META_DEVICE = "torch._meta_registrations"  # registers operations; to have them, import it
DEFERRED = (
    "torch.ao",
    "torch.distributions",
    "torch.export",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.quantization",
    "torch.utils.data",
)


class Deferred(ModuleType):
    """A module that is imported when it is asked for one of its attributes."""

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):  # of the import system, which asks every module
            raise AttributeError(f"{self.__name__} is not imported yet")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), attribute)


def import_torch() -> None:
    """Import torch without OF_META_DEVICE and DEFERRED, which may be imported later."""
    if "torch" in sys.modules:
        return
    deferred = [Deferred(name) for name in DEFERRED]
    with _in_place([ModuleType(OF_META_DEVICE), *deferred]):
        importlib.import_module("torch")
    for module in deferred:  # an import sets an attribute of the package only where it loads a module
        package, _, name = module.__name__.rpartition(".")
        vars(sys.modules[package]).setdefault(name, module)


@contextmanager
def _in_place(modules: list[ModuleType]) -> Iterator[None]:
    """Meanwhile an import of a module with one of these names finds this one."""
    sys.modules.update((module.__name__, module) for module in modules)
    try:
        yield
    finally:
        for module in modules:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]
