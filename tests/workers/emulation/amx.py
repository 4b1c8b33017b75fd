"""Runs the amx library on a processor without AMX: prepares copies of the libraries, and the process that runs them.

The emulator (amx_trap.cpp) is preloaded and does what the processor cannot: each instruction of AMX is illegal here, so
the process gets a signal. CPUID and XGETBV are legal and would deny AMX: in copies of the libraries, instructions that
are illegal, too, replace them.
"""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paged_serve.workers.kernels.cpu import library as cpu

REPORT = "PAGED_SERVE_TEST_AMX_REPORT"  # the variable that amx_trap.cpp reads
is_emulated = REPORT in os.environ
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
OPTIONS = ("-q", "-p", "no:cacheprovider", "--timeout", "3000")
REPLACED = {"cpuid": (b"\x0f\xa2", b"\xd6\x01"), "xgetbv": (b"\x0f\x01\xd0", b"\xd6\x02\x90")}  # as in amx_trap.cpp
TILES = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
# Of csrc/cpu, what the tests of tile order need compiled with tiles: what multiplies, and the pools that it gets.
TESTED = (
    *("attention/attention.cpp", "gemm/gemm.cpp", "gemm/fp16_tile.cpp", "gemm/int4/int4_tile.cpp", "gemm/int8.cpp"),
    *("library.cpp", "pool.cpp"),
)
DOTS = ("tdpbf16ps", "tdpbsud")  # the instructions that csrc/cpu uses for its two kinds of tiles


class EmulatedAmx:
    """Libraries for AMX in a folder and the emulator that runs them; `isa` is the one to choose."""

    def __init__(self, folder: Path, optimization: str, *, is_whole: bool):
        """`optimization`: the flag for a library that must be compiled; -O0 builds sooner, -O1 runs faster.
        `is_whole`: whether all of it is compiled with tiles, not only TESTED."""
        self._folder = folder
        self.report = folder / "report"
        self._emulator = folder / "amx_trap.so"
        flags = ["-std=c++20", "-O3", "-march=x86-64-v3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"]
        shared = ["-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
        subprocess.run(
            ["g++", *flags, *shared, str(HERE / "amx_trap.cpp"), "-o", str(self._emulator), "-ldl"], check=True
        )
        if "avx512fma" in cpu.runnable_isas():
            self.isa = "amx"
            replace_questions(cpu.library_path("amx"), folder)
        else:
            self.isa = "avx2"  # its vectors beside AMX's tiles, which no real processor has
            compile_with_tiles(self.isa, folder, optimization, is_whole=is_whole)
            replace_questions(folder / f"_cpu_{self.isa}.so", folder)
        replace_questions(cpu.library_path("portable"), folder)  # it says which library is the best

    def environment(self) -> dict[str, str]:
        """Variables of a process whose libraries are those of the folder (tests/workers/conftest.py)."""
        report = {REPORT: str(self.report)}
        return {
            **os.environ,
            **report,
            "LD_PRELOAD": str(self._emulator),
            "PAGED_SERVE_TEST_KERNELS": str(self._folder),
        }

    def run_tests(self, *arguments: str) -> dict[str, int]:
        """Run pytest with `arguments` on the emulated library; how often each instruction ran. Fails if a test does."""
        self.report.unlink(missing_ok=True)
        done = self.run("pytest", *OPTIONS, "--cpu-isa", self.isa, *arguments)
        report = self.report.read_text().splitlines() if self.report.exists() else []
        faults = [line for line in report if line.startswith("fault")]
        assert done.returncode == 0, "\n".join([*faults, done.stdout[-6000:], done.stderr[-2000:]])
        assert not faults, faults
        return dict(counted(report))

    def run(self, *module: str, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a module with its arguments; all its processes are emulated."""
        environment = {**self.environment(), "PYTHONPATH": str(checkout)}
        command = [sys.executable, "-m", *module]
        return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)

    def checkout(self) -> Path:
        """A copy of this checkout, whose servers, too, have the emulated library and find that there is AMX."""
        copy = self._folder / "checkout"
        left_out = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
        for library in self._folder.glob("_cpu_*.so"):
            shutil.copy(library, copy / "csrc")
        return copy


def counted(report: list[str]) -> Iterator[tuple[str, int]]:
    """(instruction, how often it ran) in all processes."""
    for name in sorted({line.split()[0] for line in report}):
        yield name, sum(int(count) for found, count in map(str.split, report) if found == name)


def replace_questions(library: Path, folder: Path) -> None:
    """Write a copy of `library` to `folder` that asks the emulator what the processor has."""
    code = bytearray(library.read_bytes())
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        address, _, text = line.partition(":")
        if (instruction := text.strip()) in REPLACED:
            old, new = REPLACED[instruction]
            at = file_offset(code, int(address, 16))
            assert code[at : at + len(old)] == old, (library, address)
            code[at : at + len(new)] = new
    (folder / library.name).write_bytes(code)


def file_offset(elf: bytes, address: int) -> int:
    """Where the 64-bit library has the code of `address`, by its program headers."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(elf[at : at + size], "little")

    table, size, count = number(32, 8), number(54, 2), number(56, 2)
    for header in range(table, table + size * count, size):
        offset, virtual, held = number(header + 8, 8), number(header + 16, 8), number(header + 32, 8)
        if number(header, 4) == 1 and virtual <= address < virtual + held:  # PT_LOAD
            return address - virtual + offset
    raise ValueError(f"no segment has {address:#x}")


def compile_with_tiles(isa: str, folder: Path, optimization: str, *, is_whole: bool) -> None:
    """Build the library for `isa`, with AMX's tiles, into `folder`: the bits do not depend on the optimization.

    Unless `is_whole`, only TESTED is compiled, and all other functions are those of the library without tiles.
    """
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="flags")
    csrc = ROOT / "csrc" / "cpu"
    flags = [
        *setup["FLAGS"],
        optimization,
        *setup["WARNINGS"],
        *setup["FLAGS_BY_ISA"][isa],
        *TILES,
        "-fPIC",
        f"-I{csrc}",
    ]
    sources = sorted(csrc.rglob("*.cpp")) if is_whole else [csrc / file for file in TESTED]
    objects = [folder / (str(source.relative_to(csrc)).replace("/", "-") + ".o") for source in sources]
    header = folder / "common.h"
    header.write_text("".join(f"#include <{name}>\n" for name in setup["COMMON"]))
    subprocess.run(["g++", *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)

    def compile_one(source: Path, target: Path) -> None:
        subprocess.run(["g++", *flags, "-include", str(header), "-c", str(source), "-o", str(target)], check=True)

    with ThreadPoolExecutor(2) as compilers:
        list(compilers.map(compile_one, sources, objects))
    built = str(cpu.library_path(isa))  # dlsym looks there for what is not in `objects`
    linked = ["-shared", "-pthread", *map(str, objects), "-Wl,--no-as-needed", built]
    subprocess.run(["g++", *linked, "-o", str(folder / f"_cpu_{isa}.so")], check=True)
