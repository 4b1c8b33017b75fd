"""Imports torch without the part that registers operations on the `meta` device: a fifth of a worker's start."""

import importlib
import sys
from types import ModuleType

OF_META_DEVICE = "torch._meta_registrations"  # the last module that torch imports; if it is renamed, nothing is saved


def import_torch() -> None:
    """Import torch without OF_META_DEVICE, which may be imported later."""
    if "torch" in sys.modules:
        return
    sys.modules[OF_META_DEVICE] = ModuleType(OF_META_DEVICE)
    try:
        importlib.import_module("torch")
    finally:
        del sys.modules[OF_META_DEVICE]
