"""Each kernel's struct of parameters in C++ against its mirror in Python: names, order and types.

Sizes are compared at each launch in the emulator, and for device code by test_nvrtc_gate.py.
"""

import ctypes
import re

import pytest

from .production import SOURCES, STRUCTS, mirror, production_kernels

TYPES = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int,
    "uint32_t": ctypes.c_uint,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
}
PARTS = ("StateRowsParams",)  # structs in those of kernels


def fields_in_cpp(struct: str) -> list[tuple[str, type]]:
    """(name, ctypes type) of each field, in order; arrays are ctypes arrays."""
    (body,) = re.findall(rf"^struct {struct} {{\n(.*?)^}};", "\n".join(SOURCES.values()), re.MULTILINE | re.DOTALL)
    fields = []
    for declaration in re.sub(r"//.*", "", body).split(";"):
        if not declaration.strip():
            continue
        kind, names = re.fullmatch(r"\s*((?:const )?\w+)\s+(.*?)\s*", declaration.replace("*", " * ")).groups()
        for declarator in names.split(","):
            pointer, name, length = re.fullmatch(r"\s*(\*?)\s*(\w+)(?:\[(\d+)\])?\s*", declarator).groups()
            field = ctypes.c_void_p if pointer else TYPES.get(kind.removeprefix("const ")) or mirror(kind)
            fields.append((name, field * int(length) if length else field))
    return fields


@pytest.mark.parametrize("struct", sorted({*STRUCTS.values(), *PARTS}))
def test_a_struct_has_the_same_fields_in_both_languages(struct):
    assert [tuple(field[:2]) for field in mirror(struct)._fields_] == fields_in_cpp(struct)


def test_every_kernel_is_among_those_that_the_gate_compiles():
    launched = {(kernel.file, kernel.function) for kernel in production_kernels("sm_90a")}
    for function in STRUCTS:
        (file,) = (name for name, source in SOURCES.items() if f"KERNEL({function}," in source)
        assert (file, function) in launched, f"no production_kernels() contains {function} of {file}"
