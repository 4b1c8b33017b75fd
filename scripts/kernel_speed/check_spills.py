"""Detect spilled accumulators in the CPU kernels: vector registers that matrix product loops keep on the stack.

g++ 12 spills them without a warning, for reasons as small as a constant stride, and the product then takes up to five
times as long. The script reads the built libraries, or the named ones, also for another architecture if its objdump is
installed; run it after `python setup.py build_ext --inplace`. What counts is stores: a loop that only reloads constants
from the stack keeps its sums in registers. The exit status is 1 if a loop spills more than allowed: with 32 registers
(AVX512, NEON) nothing; with 16, one store per six dots; more in functions without a loop. The portable library on x86
has no dot instruction to look for.
"""

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
DOT = re.compile(r"vdpbf16ps|vpdpbusd|vfmadd\d+ps|vpmaddwd|\bfmla\s+v|\bsdot\s|\bsadalp\s")
MIN_DOTS = 12  # in a loop of a product: with fewer, accumulators cannot fill the registers
STACK_STORE = re.compile(  # of a vector: on x86, on ARM
    r"%[yz]mm\d+,[-0x\da-f]*\(%r[sb]p\)|\bstu?[rp]\s+q\d+,.*\[(?:sp|x29)\b"
)
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$")
JUMP = re.compile(r"^(?:j\w+\s+|b(?:\.\w+)?\s+|cbn?z\s+\w+, |tbn?z\s+\w+, #\d+, )([0-9a-f]+) ")
MACHINES = {62: "x86_64", 183: "aarch64"}  # by the number in the ELF header
WIDE = ("amx", "avx512", "neon")  # libraries whose instruction sets have 32 registers


def objdump(library: Path) -> str:
    """The objdump for the library's architecture."""
    with library.open("rb") as file:
        machine = MACHINES[int.from_bytes(file.read(20)[18:20], "little")]
    return "objdump" if machine == platform.machine() else f"{machine}-linux-gnu-objdump"


def functions(library: Path) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Every function's name, and its instructions with their addresses."""
    command = [objdump(library), "--disassemble", "--demangle", "--no-show-raw-insn", str(library)]
    name, body = "", []
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if match := FUNCTION.match(line):
            yield name, body
            name, body = match[1], []
        elif match := INSTRUCTION.match(line):
            body.append((int(match[1], 16), match[2]))
    yield name, body


def innermost_loops(body: list[tuple[int, str]]) -> list[list[str]]:
    """The instructions between each backward jump and its target, if they contain no other loop."""
    jumps = [(int(match[1], 16), address) for address, text in body if (match := JUMP.match(text))]
    spans = [(start, end) for start, end in jumps if start <= end and start >= body[0][0]]
    inner = [s for s in spans if not any(s != t and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [[text for address, text in body if start <= address <= end] for start, end in inner]


def allowed(library: Path, dots: int, *, is_loop: bool) -> int:
    """Stores to the stack allowed for `dots` in a loop, or in an unrolled function, which also unpacks codes."""
    if any(isa in library.name for isa in WIDE):
        return 0 if is_loop else dots // 12
    return dots // 6 if is_loop else dots // 3


def spills(library: Path) -> dict[str, tuple[int, int, int]]:
    """By function: the most vectors stored to the stack in a loop of a product, its dots, and the stores allowed."""
    found = {}
    for name, body in functions(library):
        loops = innermost_loops(body)
        for texts in loops or [[text for _, text in body]]:  # without a loop: all words of K are unrolled
            dots, stores = (sum(bool(pattern.search(text)) for text in texts) for pattern in (DOT, STACK_STORE))
            if dots >= MIN_DOTS and stores > found.get(name, (0, 0, 0))[0]:
                found[name] = stores, dots, allowed(library, dots, is_loop=bool(loops))
    return found


def excessive(found: dict[str, tuple[int, int, int]]) -> list[str]:
    """Of `spills`, the functions with more stores than allowed."""
    return [f"{name}: {stores} stores for {dots} dots" for name, (stores, dots, most) in found.items() if stores > most]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", type=Path, help="default: those that were built in csrc")
    failed = False
    for library in parser.parse_args().libraries or sorted(CSRC.glob("_cpu_*.so")):
        found = spills(library)
        failed |= bool(excessive(found))
        print(f"{library.name}: {len(found)} functions spill")
        for name, (stores, dots, _) in sorted(found.items()):
            print(f"  {stores:3d} stores, {dots:3d} dots  {name}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
