"""Builds the CPU kernels of csrc/cpu, once for each instruction set, as libraries that ctypes loads.

They are optional: without a C++20 compiler everything else installs, and torch multiplies row by row, slowly.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
KERNELS = "paged_serve/csrc/cpu"
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"]
# Before register allocation gcc would move loads up until accumulators spill to the stack; on x86 it does not do this.
NEON = ["-fno-schedule-insns"]
FLAGS_BY_MACHINE: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
        "avx512": [*AVX512, "-mavx512bf16"],
        "avx512fma": AVX512,
        "avx2": ["-mavx2", "-mfma", "-mf16c"],
        "portable": [],
    },
    "aarch64": {
        "neon_dotprod": [*NEON, "-march=armv8.2-a+dotprod"],
        "neon": NEON,
        "portable": ["-DPORTABLE"],
    },
}
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
FLAGS_BY_ISA = FLAGS_BY_MACHINE.get(MACHINE, {"portable": []})
AVX512_FEATURES = "avx512f avx512bw avx512vl avx512dq avx512_vnni avx2 fma f16c"
FEATURES_BY_ISA = {  # as Linux names them
    "amx": f"{AVX512_FEATURES} avx512_bf16 amx_tile amx_bf16 amx_int8",
    "avx512": f"{AVX512_FEATURES} avx512_bf16",
    "avx512fma": AVX512_FEATURES,
    "avx2": "avx2 fma f16c",
    "neon_dotprod": "asimddp",
}
# No contraction: products and sums are fused only where the source says so, or tiles of other sizes could differ.
FLAGS = ["-std=c++20", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-pthread"]
# gcc 12 warns by the thousand about its own vector headers, and that the ABI of vectors depends on flags.
WARNINGS = ["-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi"]
# What most sources include, compiled once for each instruction set: reading it took half of the time of most sources,
# each of which includes what it needs all the same; scripts/faults/sanitize_kernels.py compiles them so.
COMMON = ["elementwise/rows.h", "algorithm", "cmath", "memory", "vector"]


class BuildKernels(build_ext):
    """Names a library `_cpu_ISA.so`, without the tag of the Python that builds it, because it does not use Python."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def run(self) -> None:
        self.parallel = len(self.extensions)
        if self.editable_mode:  # only for this machine; a wheel is for all
            self.extensions = [ext for ext in self.extensions if runs_here(ext.name.partition("_cpu_")[2])]
        with ThreadPoolExecutor(os.cpu_count()) as self.compilers:
            super().run()
        missing = [ext.name for ext in self.extensions if not Path(self.get_ext_fullpath(ext.name)).exists()]
        if missing:
            names = ", ".join(name.removeprefix("paged_serve.csrc.") for name in missing)
            self.warn(f"{names}: not built, so the CPU backend will be slow there. It takes a C++20 compiler (g++ 12)")

    def build_extension(self, ext: Extension) -> None:
        """Use separate object files, compiled in parallel with those of the other libraries."""
        folder, library = Path(self.build_temp, ext.name), self.get_ext_fullpath(ext.name)
        options = [*ext.extra_compile_args, "-include", str(self.precompile(ext, folder))]
        flags = {"extra_postargs": options, "depends": ext.depends, "include_dirs": ext.include_dirs}
        compile_one = partial(self.compiler.compile, output_dir=str(folder), **flags)
        compiled = self.compilers.map(lambda source: compile_one([source]), ext.sources)
        objects = [file for files in compiled for file in files]
        self.compiler.link_shared_object(objects, library, extra_postargs=ext.extra_link_args, target_lang="c++")

    def precompile(self, ext: Extension, folder: Path) -> Path:
        """A header that includes COMMON; what the compiler makes of it lies beside it, where it looks for that."""
        header = folder / "common.h"
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text("".join(f"#include <{name}>\n" for name in COMMON))
        options = [*ext.extra_compile_args, *(f"-I{path}" for path in ext.include_dirs), "-c", "-x", "c++-header"]
        command = [*self.compiler.compiler_so_cxx, *options, str(header), "-o", f"{header}.gch"]
        self.compilers.submit(self.compiler.spawn, command).result()
        return header


def runs_here(isa: str) -> bool:
    """Whether this processor has the features that the library needs; true if that cannot be determined."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return True
    found = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), None)
    return found is None or set(FEATURES_BY_ISA.get(isa, "").split()) <= set(found)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 of one platform, because the libraries do not use Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def kernels() -> list[Extension]:
    return [
        Extension(
            f"paged_serve.csrc._cpu_{isa}",
            sorted(str(path.relative_to(ROOT)) for path in (ROOT / KERNELS).rglob("*.cpp")),
            depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / KERNELS).rglob("*.h")),
            include_dirs=[KERNELS],
            extra_compile_args=[*FLAGS, *WARNINGS, *FLAGS_BY_ISA[isa]],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
        for isa in FLAGS_BY_ISA
    ]


if __name__ == "__main__":  # scripts/faults/sanitize_kernels.py reads the flags
    setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel})
