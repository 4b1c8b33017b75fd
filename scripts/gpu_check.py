"""Run all checks and benchmarks that need a GPU in under twenty minutes.

    python scripts/gpu_check.py [--out build/gpu_check] [--only WORD ...] [--dry-run] [--executor emulator]

Runs the parts below one after another, each in its own process with its own time limit. A part that fails, hangs or
cannot run is recorded, and the next one starts. Writes gpu_check.json and gpu_check.md. Requires the `dev` extra and a
CUDA device; the exit status is 2 if torch finds none. compute-sanitizer is part of the CUDA toolkit; its part is
skipped if it is missing. With --executor emulator, as much as possible runs on the CPU; the figures of such a trial run
mean nothing.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from gpu_report import machine_facts, markdown

ROOT = Path(__file__).parent.parent
LIMIT_S = 1200  # of all parts together
TAIL_CHARACTERS = 6000
GRACE_S = 5
NO_DEVICE = 2  # the exit status
SANITIZER = "compute-sanitizer"
Executor = Literal["cuda", "emulator"]
Outcome = Literal["passed", "failed", "timed out", "not run"]


@dataclass(frozen=True, slots=True)
class Part:
    """One command. The last JSON line that it prints, if any, is a list of figures for the report."""

    name: str
    what: str
    command: tuple[str, ...]
    limit_s: int
    program: str = ""  # external program without which the part is skipped


def parts_for(executor: Executor) -> list[Part]:
    """The parts, the most important first."""
    python = sys.executable
    pytest = (python, "-m", "pytest", "-q", "--timeout", "0", "-p", "no:cacheprovider", "--executor", executor)
    checks = (python, "-m", "tests.cuda.executors", executor)
    device = "cuda" if executor == "cuda" else "cpu"
    model = (python, "scripts/demo_model/check_device_model.py", "--device", device)
    bits = "fp8" if executor == "cuda" else "int8"
    coded = ("--quantization", bits, "--kv-cache-dtype", bits)
    return [
        Part("selftest", "every primitive: device, emulator and definition agree", (*pytest, SELFTEST), 90),
        Part(
            "kernels",
            "the kernels' and the library's tests on the device",
            (*pytest, "-n", "4", "tests/cuda", f"--deselect={SELFTEST}"),
            100,
        ),
        *(sanitizer(tool, checks) for tool in ("memcheck", "racecheck")),
        Part("parity", "the demo model's logprobs compared with transformers'", (*model, "parity"), 80),
        Part("determinism", "the same requests alone, together and in chunks", (*model, "determinism"), 80),
        Part("determinism-fp8", "the same with weights and KV cache in fp8", (*model, "determinism", *coded), 80),
        Part("recovery", "the same while a worker, the engine core, and both are killed", (*model, "recovery"), 60),
        *benchmarks(executor, device),
    ]


def sanitizer(tool: str, checks: tuple[str, ...]) -> Part:
    what = f"the checks of all kernels under compute-sanitizer's {tool}"
    return Part(tool, what, (SANITIZER, "--tool", tool, "--error-exitcode", "9", *checks), 100, SANITIZER)


def benchmarks(executor: Executor, device: str) -> list[Part]:
    peer = (sys.executable, "scripts/models/bench_peer_throughput.py", "--device", device)
    bench = (sys.executable, "scripts/kernel_speed/bench_cuda.py", "--executor", executor)
    whole = (sys.executable, "scripts/kernel_speed/bench_device_model.py")
    return [
        Part("decode", "attention of single tokens", (*bench, "decode"), 60),
        Part("prefill", "attention of prompts", (*bench, "prefill"), 60),
        Part("elementwise", "rotation and cache write, norm, gate", (*bench, "elementwise"), 40),
        Part("experts", "mixtures of experts, and latent attention", (*bench, "experts"), 40),
        Part("products", "the library's products by their number of rows", (*bench, "products"), 40),
        Part("sampler", "sampling of 128 rows", (*bench, "sampler"), 40),
        Part("launch", "CPU time of a kernel launch", (*bench, "launch"), 30),
        Part("model", "steps of an 8B-class model compared with the bandwidth", (*whole, "--executor", executor), 80),
        Part("throughput", "tokens per second compared with transformers' continuous batching", peer, 120),
    ]


SELFTEST = "tests/cuda/kernels/test_selftest.py"


def run(part: Part, limit_s: float) -> dict[str, Any]:
    """Run one part; returns its record for the report."""
    record: dict[str, Any] = {"name": part.name, "what": part.what, "command": list(part.command), "limit_s": limit_s}
    if part.program and shutil.which(part.program) is None:
        return record | {"outcome": "not run", "seconds": 0.0, "output": f"{part.program} was not found", "figures": []}
    if limit_s <= 0:
        return record | {"outcome": "not run", "seconds": 0.0, "output": "no time was left", "figures": []}
    started = time.monotonic()
    outcome, output = execute(part.command, limit_s)
    seconds = round(time.monotonic() - started, 1)
    figures = figures_of(output)
    return record | {"outcome": outcome, "seconds": seconds, "output": output[-TAIL_CHARACTERS:], "figures": figures}


def execute(command: tuple[str, ...], limit_s: float) -> tuple[Outcome, str]:
    """Run a command in its own process group, which is killed at the end."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return "timed out", output
    return "passed" if process.returncode == 0 else "failed", output


def figures_of(output: str) -> list[dict[str, Any]]:
    """The figures that a part printed, also if it was ended by its time limit."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            if line.startswith("[") and isinstance(found := json.loads(line), list):
                return found
    return []


def check(parts: list[Part], executor: Executor, folder: Path, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run the parts and write the report after each, so that results survive the loss of the machine."""
    started = time.monotonic()
    report: dict[str, Any] = {"executor": executor, **machine_facts(), "parts": []}
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        left_s = limit_s - (time.monotonic() - started)
        print(f"{part.name}: {part.what}", flush=True)
        report["parts"].append(record := run(part, min(part.limit_s, left_s)))
        print(f"  {record['outcome']}, {record['seconds']} s", flush=True)
        report["seconds"] = round(time.monotonic() - started, 1)
        (folder / "gpu_check.json").write_text(json.dumps(report, indent=1))
        (folder / "gpu_check.md").write_text(markdown(report))
    return report


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_check")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--executor", choices=["cuda", "emulator"], default="cuda")
    parser.add_argument("--dry-run", action="store_true", help="print the parts and their commands")
    options = parser.parse_args(arguments)
    parts = parts_for(options.executor)
    if unknown := set(options.only) - {part.name for part in parts}:
        parser.error(f"no part is called {', '.join(sorted(unknown))}; known: {', '.join(p.name for p in parts)}")
    parts = [part for part in parts if not options.only or part.name in options.only]
    if options.dry_run:
        for part in parts:
            print(f"{part.name} (at most {part.limit_s} s): {' '.join(part.command)}")
        return 0
    if options.executor == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device, so nothing was run; --executor emulator runs on the CPU")
        return NO_DEVICE
    report = check(parts, options.executor, options.out)
    print(f"{options.out / 'gpu_check.md'}: {report['seconds']} s")
    return int(any(part["outcome"] in ("failed", "timed out") for part in report["parts"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
