"""The names of a checkpoint's tensors in a file of one architecture, see gguf_files.py."""

from collections.abc import Callable

import gguf

from .gguf_gated_delta import further_name
from .gguf_newer_families import NEWER, newer_name

NAMED_AS = {"cohere2moe": "glm4moe"}  # of architectures that the package does not know: one with the same names


def name_of(architecture: str, num_layers: int) -> Callable[[str], str]:
    """What gives the name in a file of a checkpoint's tensor."""
    if architecture in NEWER:
        return newer_name
    of_package = package_name_of(architecture, num_layers)

    def named(name: str) -> str:
        stored = of_package(name) or further_name(name)
        assert stored is not None, name
        return stored

    return named


def package_name_of(architecture: str, num_layers: int) -> Callable[[str], str | None]:
    """The same, by the package alone if it knows the architecture; None: it has no name for the tensor."""
    known = NAMED_AS.get(architecture, architecture)
    kind = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == known), None)
    if kind is None:
        return _newer_name_or_none
    names = gguf.get_tensor_name_map(kind, num_layers)
    return lambda name: names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))


def _newer_name_or_none(name: str) -> str | None:
    try:
        return newer_name(name)
    except KeyError:
        return None
