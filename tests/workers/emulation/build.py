"""Builds libraries of csrc/cpu for emulators; the bits of the kernels do not depend on the optimization."""

import os
import runpy
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
CSRC = ROOT / "csrc" / "cpu"
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="flags")
TILES = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")


def build(
    library: Path,
    sources: Sequence[Path],
    flags: Sequence[str],
    *,
    compiler: str = "g++",
    csrc: Path = CSRC,
    first: Sequence[Path] = (),
    last: Sequence[Path] = (),
    missing: Path | None = None,
) -> None:
    """Build `library` of `sources`, beside which its objects remain.

    All read the headers `first`, then what setup.py compiles once, then `last`. Functions that no source has are those
    of the library `missing`.
    """
    folder = library.with_suffix("")
    folder.mkdir()
    command = [compiler, *SETUP["FLAGS"], *SETUP["WARNINGS"], *flags, "-fPIC", f"-I{csrc}"]
    header, objects = folder / "common.h", [folder / f"{source.parent.name}-{source.stem}.o" for source in sources]
    names = [*(f'"{file}"' for file in first), *(f"<{name}>" for name in SETUP["COMMON"])]
    header.write_text("".join(f"#include {name}\n" for name in names))
    subprocess.run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    included = [word for file in (header, *last) for word in ("-include", str(file))]

    def compile_one(source: Path, target: Path) -> None:
        subprocess.run([*command, *included, "-c", str(source), "-o", str(target)], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        list(compilers.map(compile_one, sources, objects))
    others = [] if missing is None else ["-Wl,--no-as-needed", str(missing)]  # dlsym looks there for the others
    subprocess.run([compiler, "-shared", "-pthread", *map(str, objects), *others, "-o", str(library)], check=True)
