"""Runs the amx library on a processor without AMX: prepares copies of the libraries, and the process that runs them.

The emulator (amx_trap.cpp) is preloaded and does what the processor cannot: each instruction of AMX is illegal here, so
the process gets a signal. CPUID and XGETBV are legal and would deny AMX: in copies of the libraries, instructions that
are illegal, too, replace them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from paged_serve.workers.kernels.cpu import library as cpu

from .avx512 import OPTIONS, build_for_avx512
from .build import CSRC, HERE, ROOT, SETUP, TILES, build

REPORT = "PAGED_SERVE_TEST_AMX_REPORT"  # the variable that amx_trap.cpp reads
is_emulated = REPORT in os.environ
REPLACED = {"cpuid": (b"\x0f\xa2", b"\xd6\x01"), "xgetbv": (b"\x0f\x01\xd0", b"\xd6\x02\x90")}  # as in amx_trap.cpp
# Of csrc/cpu, what the tests of tile order need compiled with tiles: what multiplies, and the pools that it gets.
TESTED = (
    *("attention/attention.cpp", "gemm/gemm.cpp", "gemm/fp16_tile.cpp", "gemm/int4/int4_tile.cpp", "gemm/int8.cpp"),
    *("gemm/finish.cpp", "library.cpp", "pool.cpp"),
)
DOTS = ("tdpbf16ps", "tdpbsud")  # the instructions that csrc/cpu uses for its two kinds of tiles


class EmulatedAmx:
    """Libraries for AMX in a folder and the emulator that runs them; `isa` is the one to choose."""

    def __init__(self, folder: Path, *, is_whole: bool):
        """`is_whole`: whether a library that must be compiled is that of AMX, with vectors that are emulated, too; or
        the one for AVX2, with TESTED compiled for tiles, which builds and runs sooner."""
        self._folder = folder
        self.report = folder / "report"
        self._emulator = folder / "amx_trap.so"
        flags = ["-std=c++20", "-O3", "-march=x86-64-v3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"]
        shared = ["-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
        subprocess.run(
            ["g++", *flags, *shared, str(HERE / "amx_trap.cpp"), "-o", str(self._emulator), "-ldl"], check=True
        )
        portable = cpu.library_path("portable")  # it says which library is the best
        if "avx512fma" in cpu.runnable_isas():
            self.isa = "amx"
            replace_questions(cpu.library_path("amx"), folder)
        elif is_whole:
            self.isa = "amx"
            build_for_avx512(self.isa, folder)
            portable = folder / portable.name
            replace_questions(folder / "_cpu_amx.so", folder)
        else:
            self.isa = "avx2"
            flags = [*SETUP["FLAGS_BY_ISA"]["avx2"], *TILES, "-O0"]
            library, tested = folder / "_cpu_avx2.so", [CSRC / file for file in TESTED]
            build(library, tested, flags, missing=cpu.library_path("avx2"))
            replace_questions(library, folder)
        replace_questions(portable, folder)

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
