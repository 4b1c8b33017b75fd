"""Build an sdist, and from it one wheel for all Linux systems on x86-64.

    python scripts/build_wheel.py [--into dist]

The wheel contains the kernels for all instruction sets of setup.py, so that its installation needs no compiler. Its tag
is the oldest manylinux whose libraries have every symbol version that ours require, according to `readelf`. The build
fails if the wheel lacks a library, needs one that manylinux does not guarantee, or has more than 10 MiB besides the
demo model. Requires g++ 12, binutils and pip.
"""

import argparse
import base64
import csv
import hashlib
import io
import re
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_BYTES = 10 << 20  # of the wheel, without the demo model
PROMISED = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
# manylinux_2_x: the newest GLIBCXX and CXXABI that its oldest distribution has (PEP 600's profiles).
NEWEST = {
    17: ("3.4.19", "1.3.7"),
    24: ("3.4.22", "1.3.10"),
    27: ("3.4.24", "1.3.11"),
    31: ("3.4.28", "1.3.12"),
    34: ("3.4.29", "1.3.13"),
    35: ("3.4.30", "1.3.13"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="FOLDER")
    into = parser.parse_args().into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(into)
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", scratch, str(sdist)]
        subprocess.run(pip, check=True)
        (built,) = Path(scratch).glob("*.whl")
        wheel = retagged(built, into)
    for path in (sdist, wheel):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    return 0


def build_sdist(into: Path) -> Path:
    """Build the sdist with setuptools in a separate environment, as pip does."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "venv", scratch], check=True)
        python = f"{scratch}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "setuptools>=77"], check=True)
        code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        subprocess.run([python, "-c", code, str(into)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return max(into.glob("paged_serve-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def retagged(built: Path, into: Path) -> Path:
    """Write `built` with its manylinux tag to `into`. Raises SystemExit if its contents are wrong."""
    with zipfile.ZipFile(built) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
        beside = sum(info.compress_size for info in archive.infolist() if "/demo_model/" not in info.filename)
    libraries = {name: data for name, data in contents.items() if name.endswith(".so")}
    wanted = {f"paged_serve/csrc/_cpu_{isa}.so" for isa in runpy.run_path(str(ROOT / "setup.py"))["FLAGS_BY_ISA"]}
    if set(libraries) != wanted:
        raise SystemExit(f"the wheel should contain {sorted(wanted)}, but contains {sorted(libraries)}")
    if beside > MAX_BYTES:
        raise SystemExit(f"the wheel has {beside} bytes besides the demo model, more than {MAX_BYTES}")
    tag = f"manylinux_2_{max(map(least_manylinux, libraries.values()))}_x86_64"
    name, version, python, abi, _ = built.stem.split("-")
    record = f"{name}-{version}.dist-info/RECORD"
    facts = f"{name}-{version}.dist-info/WHEEL"
    contents[facts] = re.sub(rb"(?m)^Tag: .*$", f"Tag: {python}-{abi}-{tag}".encode(), contents[facts])
    contents[record] = record_of(contents, record)
    path = into / f"{name}-{version}-{python}-{abi}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in contents.items():
            archive.writestr(file, data)
    return path


def record_of(contents: dict[str, bytes], record: str) -> bytes:
    """The wheel's RECORD: its files with their hashes and sizes."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([name, "", ""] if name == record else [name, f"sha256={digest}", len(data)])
    return text.getvalue().encode()


def least_manylinux(library: bytes) -> int:
    """x of the oldest manylinux_2_x that provides all symbol versions that `library` requires."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        symbols = subprocess.run(
            ["readelf", "--wide", "--dynamic", "--version-info", file.name], check=True, capture_output=True, text=True
        ).stdout
    if strange := set(re.findall(r"\(NEEDED\).*\[(.*)\]", symbols)) - PROMISED:
        raise SystemExit(f"a library needs {sorted(strange)}, which manylinux does not guarantee")
    versions = {kind: newest(re.findall(rf"Name: {kind}_([\d.]+)", symbols)) for kind in ("GLIBC", "GLIBCXX", "CXXABI")}
    for least, (glibcxx, cxxabi) in NEWEST.items():
        has = {"GLIBC": parsed(f"2.{least}"), "GLIBCXX": parsed(glibcxx), "CXXABI": parsed(cxxabi)}
        if all(versions[kind] <= has[kind] for kind in versions):
            return least
    raise SystemExit(f"no known manylinux has {versions}")


def newest(versions: list[str]) -> tuple[int, ...]:
    return max(map(parsed, versions), default=(0,))


def parsed(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    sys.exit(main())
