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
from itertools import pairwise
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"
DOTS = r"(?:vdpbf16ps|vpdpbusd|vfmadd\d+ps|vpmaddwd|vpmaddubsw|fmla\s+v|sdot\s|sadalp\s)"
DOT = re.compile(rf"\b{DOTS}")
DOT_IN_TEXT = re.compile(rf"[\t ]{DOTS}")  # megabytes of text: a search for a character takes a tenth of one for \b
MIN_DOTS = 12  # in a loop of a product: with fewer, accumulators cannot fill the registers
STACK_STORE = re.compile(  # of a vector: on x86, on ARM
    r"%[yz]mm\d+,[-0x\da-f]*\(%r[sb]p\)|\bstu?[rp]\s+q\d+,.*\[(?:sp|x29)\b"
)
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$", re.MULTILINE)
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(.*)$", re.MULTILINE)
JUMP = re.compile(r"^(?:(?:bnd |notrack )?j\w+\s+|b(?:\.\w+)?\s+|cbn?z\s+\w+, |tbn?z\s+\w+, #\d+, )([0-9a-f]+)\b")
NO_WAY_ON = re.compile(r"^(?:(?:bnd |notrack |repz? )*(?:jmp|ret)|b\s|br\s|ud2|hlt|brk|udf)")  # to the next instruction
MACHINES = {62: "x86_64", 183: "aarch64"}  # by the number in the ELF header
WIDE = ("amx", "avx512", "neon")  # libraries whose instruction sets have 32 registers

Instructions = list[tuple[int, str]]  # addresses and texts
Graph = dict[int, set[int]]  # by block, the blocks that may follow


def objdump(library: Path) -> str:
    """The objdump for the library's architecture."""
    with library.open("rb") as file:
        machine = MACHINES[int.from_bytes(file.read(20)[18:20], "little")]
    return "objdump" if machine == platform.machine() else f"{machine}-linux-gnu-objdump"


def functions(library: Path) -> Iterator[tuple[str, Instructions]]:
    """Every function with dots and a vector stored to the stack: its name, and its instructions with their addresses.

    Four of five functions cannot spill, and searching text for that is faster than parsing it.
    """
    command = [objdump(library), "--disassemble", "--demangle", "--no-show-raw-insn", str(library)]
    _, *found = FUNCTION.split(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for name, body in zip(found[::2], found[1::2], strict=True):
        if len(DOT_IN_TEXT.findall(body)) >= MIN_DOTS and STACK_STORE.search(body):
            yield name, [(int(address, 16), text) for address, text in INSTRUCTION.findall(body)]


def innermost_loops(body: Instructions) -> list[list[str]]:
    """The instructions of each loop that contains no other loop.

    Compilers put what runs rarely, such as the last few elements of a row, after the rest of a function, and jump back
    from there. So a loop is not what lies between a backward jump and its target, but a set of blocks each of which can
    reach all the others.
    """
    blocks = basic_blocks(body)
    loops = loops_without_loops(successors(blocks), set(blocks))
    return [[text for start in sorted(loop) for _, text in blocks[start]] for loop in loops]


def basic_blocks(body: Instructions) -> dict[int, Instructions]:
    """The instructions from each one that is jumped to, or follows a jump, up to the next such one, by its address."""
    starts = {int(match[1], 16) for _, text in body if (match := JUMP.match(text))}
    starts |= {after for (_, text), (after, _) in pairwise(body) if JUMP.match(text) or NO_WAY_ON.match(text)}
    blocks: dict[int, Instructions] = {}
    for address, text in body:
        if address in starts or not blocks:
            start = address
            blocks[start] = []
        blocks[start].append((address, text))
    return blocks


def successors(blocks: dict[int, Instructions]) -> Graph:
    """Targets outside of the function, and of jumps to an address in a register, are left out."""
    follows = dict(pairwise(blocks))
    graph: Graph = {}
    for start, instructions in blocks.items():
        _, last = instructions[-1]
        after = set() if NO_WAY_ON.match(last) or start not in follows else {follows[start]}
        if match := JUMP.match(last):
            after.add(int(match[1], 16))
        graph[start] = after & blocks.keys()
    return graph


def loops_without_loops(graph: Graph, within: set[int]) -> list[set[int]]:
    found = []
    for loop in cycles({block: graph[block] & within for block in within}):
        entered = {after for block in graph.keys() - loop for after in graph[block] & loop}
        found += loops_without_loops(graph, loop - {min(entered or loop)}) or [loop]
    return found


def cycles(graph: Graph) -> list[set[int]]:
    """The strongly connected components, except single blocks that do not follow themselves (Kosaraju's algorithm)."""
    before: Graph = {block: set() for block in graph}
    for block, after in graph.items():
        for other in after:
            before[other].add(block)
    seen: set[int] = set()
    finished = [block for start in sorted(graph) for block in reached(graph, start, seen)]
    seen = set()
    components = [set(reached(before, start, seen)) for start in reversed(finished)]
    return [component for component in components if len(component) > 1 or any(b in graph[b] for b in component)]


def reached(graph: Graph, start: int, seen: set[int]) -> list[int]:
    """The blocks that can be reached from `start` and have not been seen, each after those that it leads to."""
    if start in seen:
        return []
    seen.add(start)
    order, path = [], [(start, iter(graph[start]))]
    while path:
        unseen = next((other for other in path[-1][1] if other not in seen), None)
        if unseen is None:
            order.append(path.pop()[0])
        else:
            seen.add(unseen)
            path.append((unseen, iter(graph[unseen])))
    return order


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
