"""Run the kernel tests under the compiler's sanitizers: memory and undefined behaviour, then threads.

Builds the libraries of csrc/cpu that run on this machine into a separate folder: all with AddressSanitizer and
UndefinedBehaviorSanitizer, and the portable one with ThreadSanitizer. With both, runs test_cpu_*.py of
tests/workers/kernels and the tests of recurrent kernels. Packed weights are placed in plain heap memory, so that reads
past their end are detected. Takes half an hour on two cores; the nightly tests run it.
"""

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc" / "cpu"
SOURCES = sorted(map(str, CSRC.rglob("*.cpp")))
OF_WORKERS = ROOT / "tests" / "workers"
RECURRENT = [OF_WORKERS / "recurrent" / f"test_{name}.py" for name in ("causal_conv", "gated_norm", "scans")]
TESTS = sorted(map(str, (*(OF_WORKERS / "kernels").rglob("test_cpu_*.py"), *RECURRENT)))
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="flags")
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
THREADS = ["-fsanitize=thread"]
# glibc frees the thread-local memory of a thread that has ended, after the destructors of its objects
SUPPRESSED = "race:_dl_deallocate_tls\n"
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # Python leaks by design
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(isa: str, folder: Path, sanitizer: list[str]) -> None:
    how = ["-O1", "-g1", "-fPIC", "-fno-omit-frame-pointer", "-w", "-Wno-psabi", "-shared"]
    flags = [*SETUP["FLAGS"], *SETUP["FLAGS_BY_ISA"][isa], *how, *sanitizer]
    subprocess.run(["g++", *flags, f"-I{CSRC}", *SOURCES, "-o", str(folder / f"_cpu_{isa}.so")], check=True)


def runtime(name: str) -> str:
    """The path of a sanitizer's library, which must be loaded before Python."""
    found = subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def run_tests(isas: list[str], sanitizer: list[str], runtimes: list[str], pytest_options: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as name:
        with ThreadPoolExecutor(max_workers=2) as builders:
            list(builders.map(lambda isa: build(isa, Path(name), sanitizer), isas))
        suppressions = Path(name, "suppressions")
        suppressions.write_text(SUPPRESSED)
        environment = {
            **os.environ,
            **OPTIONS,
            "TSAN_OPTIONS": f"halt_on_error=1:suppressions={suppressions}",
            "LD_PRELOAD": " ".join(map(runtime, runtimes)),
            "PAGED_SERVE_TEST_KERNELS": name,
            "PYTHONPATH": str(ROOT),
        }
        options = ["-q", "-s", "-n", "2", "-p", "no:cacheprovider", "--products", "whole"]
        command = [sys.executable, "-m", "pytest", *options, *TESTS, *pytest_options]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Further options are passed to pytest.", allow_abbrev=False
    )
    _, pytest_options = parser.parse_known_args()
    print("memory and undefined behaviour:", flush=True)
    isas = list(filter(SETUP["runs_here"], SETUP["FLAGS_BY_ISA"]))
    failed = run_tests(isas, MEMORY, ["libasan.so", "libubsan.so"], pytest_options)
    print("threads:", flush=True)
    return run_tests(["portable"], THREADS, ["libtsan.so"], pytest_options) or failed


if __name__ == "__main__":
    sys.exit(main())
