"""Reads the resources and instruction counts of kernels from a cubin (ELF), without NVIDIA's tools.

For all kernels and architectures of the gate, the results equal those of `cuobjdump -res-usage` and `nvdisasm` of CUDA
13.0.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# The low 9 bits of an instruction, the same on sm_80 to sm_120; the three bits above give the form of its operands.
OPCODES = {
    0x03C: "HMMA",  # products of tensor cores, 16-bit
    0x03B: "LDSM",  # matrices from shared memory
    0x1AE: "LDGSTS",  # asynchronous copies, global to shared
    0x183: "LDL",  # local memory, for spilled registers
    0x187: "STL",
    0x11D: "BAR",
}
INSTRUCTION_BYTES = 16
TEXT, SHARED, OF_KERNEL = ".text.", ".nv.shared.", ".nv.info."
# Attributes of .nv.info: a format byte, a kind byte, 16 bits with the value or, for SIZED, its length.
SIZED = 0x04
REGISTERS, FRAME_BYTES, STACK_BYTES, PARAMS_BYTES = 0x2F, 0x11, 0x12, 0x19


@dataclass(frozen=True, slots=True)
class KernelResources:
    """The resources of a thread, or of a block where stated."""

    registers: int
    stack_bytes: int  # the largest of the kernel's and its subroutines'
    static_shared_bytes: int  # of a block; includes 1024 of the system on sm_90 and later
    params_bytes: int
    instructions: dict[str, int]  # number of each of OPCODES in the code


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    content: bytes  # empty if it is not in the file
    size: int
    link: int


def read_cubin(cubin: bytes) -> dict[str, KernelResources]:
    """Every kernel of the file, by name."""
    sections = list(read_sections(cubin))
    by_name = {section.name: section for section in sections}
    symbols = symbol_names(by_name[".symtab"], sections)
    of_functions = dict(numbered(by_name[".nv.info"].content))
    stack = max((value for (kind, _), value in of_functions.items() if kind in (FRAME_BYTES, STACK_BYTES)), default=0)
    found = {}
    for (kind, symbol), registers in of_functions.items():
        if kind == REGISTERS and TEXT + (name := symbols[symbol]) in by_name:
            shared = by_name.get(SHARED + name)
            found[name] = KernelResources(
                registers=registers,
                stack_bytes=stack,
                static_shared_bytes=shared.size if shared else 0,
                params_bytes=next(n for k, n in attributes(by_name[OF_KERNEL + name].content) if k == PARAMS_BYTES),
                instructions=count_instructions(by_name[TEXT + name].content),
            )
    return found


def read_sections(cubin: bytes) -> Iterator[Section]:
    """The sections of a 64-bit, little-endian ELF file."""
    assert cubin[:6] == b"\x7fELF\x02\x01", "not a cubin"
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, index_of_names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * entry_bytes) for i in range(count)]
    names = headers[index_of_names][4]
    for name, kind, _, _, offset, size, link, *_ in headers:
        end = cubin.index(b"\0", names + name)
        content = b"" if kind == 8 else cubin[offset : offset + size]  # 8: takes no space in the file
        yield Section(cubin[names + name : end].decode(), content, size, link)


def symbol_names(table: Section, sections: list[Section]) -> list[str]:
    names = sections[table.link].content
    starts = [struct.unpack_from("<I", table.content, at)[0] for at in range(0, len(table.content), 24)]
    return [names[start : names.index(b"\0", start)].decode() for start in starts]


def attributes(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(kind, value) of each attribute; values of sized ones are bytes."""
    at = 0
    while at < len(content):
        form, kind, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == SIZED:
            yield kind, content[at : at + value]
            at += value
        else:
            yield kind, value


def numbered(content: bytes) -> Iterator[tuple[tuple[int, int], int]]:
    """Attributes that assign a number to a symbol: ((kind, symbol), number)."""
    for kind, value in attributes(content):
        if isinstance(value, bytes) and len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            yield (kind, symbol), number


def count_instructions(text: bytes) -> dict[str, int]:
    words = struct.unpack(f"<{len(text) // 8}Q", text)[:: INSTRUCTION_BYTES // 8]
    counts = Counter(OPCODES.get(word & 0x1FF) for word in words)
    return {name: counts[name] for name in OPCODES.values()}
