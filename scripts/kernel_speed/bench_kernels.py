"""Compare the speed of the CPU kernels with the machine's limits.

    python scripts/kernel_speed/bench_kernels.py [--threads 2] [--only WORD ...] [--isa avx2] [--summation tile]
                                                 [--against LIBRARY]

Regime: one kernel at a time, called as in a step, on the operands of kernel_cases.py and latent_cases.py. Next to every
sample, both limits are measured with the same threads: the bandwidth of reading the KV cache, which is larger than any
cache of the machine and lies in large pages, and the rate of dot products in registers with the processor's fastest
instruction for the kernel's number format. That instruction may differ from the kernel's own: all libraries that run on
this machine are tried, for bfloat16 also fp32 FMA, with AMX also tiles. The floor of a call is the larger of bytes /
bandwidth and operations / peak; `of limit` is floor / time, the median over the samples. With one thread, times are CPU
time, which depends less on other load; with more threads they are wall time. The last line is JSON.

`--against csrc/_cpu_avx2.so` of another checkout calls each kernel of that library in turn with ours. `gain` is its
time / ours, the median over the pairs: the effect of a change, on a machine whose speed varies.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, get_args

import torch
from kernel_cases import Case, all_cases, make_cache
from latent_cases import latent_cases, sparse_cases
from torch import Tensor

from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.bench.report.tables import number
from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.tile_chunk import choose_chunk

SAMPLES = 9
SAMPLE_S = 0.03  # minimum duration of a sample: consecutive calls
PAIRS = 15  # of samples of half that duration, with --against
PEAK_STEPS = 1_000_000  # several milliseconds with any instruction set


# Instructions that multiply numbers of each format exactly enough.
INSTRUCTIONS = {"bf16": ("bf16", "fp32", "amx_bf16"), "fp32": ("fp32",), "int8": ("int8", "amx_int8")}


@dataclass(frozen=True, slots=True)
class Machine:
    """The threads that compute, their clock, and the memory whose read bandwidth is the limit."""

    pool: cpu.Pool
    clock: Callable[[], float]
    memory: Tensor
    others: tuple[cpu.Pool, ...]  # one per library that runs here, to measure its instructions
    best: dict[str, tuple[cpu.Pool, str]]  # by number format of a kernel: the fastest instruction and its own format

    def time(self, call: Callable[[], object], times: int = 1) -> float:
        """Seconds per call."""
        began = self.clock()
        for _ in range(times):
            call()
        return (self.clock() - began) / times

    def read_bandwidth(self, pool: cpu.Pool | None = None) -> float:
        """Bytes per second."""
        pool, nbytes = pool or self.pool, self.memory.nbytes
        return nbytes / self.time(lambda: pool.library.read_memory(pool.handle, self.memory.data_ptr(), nbytes))

    def peak(self, number_format: str) -> float:
        """Operations per second with the fastest instruction."""
        return self.peak_of(*self.best[number_format])

    def peak_of(self, pool: cpu.Pool, instruction: str) -> float:
        began = self.clock()
        done = pool.library.peak_operations(pool.handle, instruction, PEAK_STEPS)
        return done / (self.clock() - began)

    def instructions(self) -> dict[str, float]:
        """Operations per second by library and format, the best of three; fills `best`."""
        rates = {
            (pool, name): max(self.peak_of(pool, name) for _ in range(3))
            for pool in self.others
            for name in pool.library.peak_formats
        }
        for number_format, names in INSTRUCTIONS.items():
            able = [(pool, name) for pool, name in rates if name in names]
            self.best[number_format] = max(able, key=lambda key: rates[key])
        return {f"{pool.library.isa} {name}": rate for (pool, name), rate in rates.items()}


def gain(machine: Machine, case: Case, other: Case, times: int) -> float:
    """How many times as long as `case` the same case of another library takes; they are called in turn."""
    pairs = []
    for _ in range(PAIRS):
        before = machine.time(other.call, times)
        own = machine.time(case.call, 2 * times)
        pairs.append((before + machine.time(other.call, times)) / 2 / own)
    return statistics.median(pairs)


def measure(machine: Machine, case: Case, other: Case | None) -> dict[str, Any]:
    case.call()
    times = max(1, round(SAMPLE_S / machine.time(case.call)))
    compared = {"gain": gain(machine, case, other, max(1, times // 4))} if other else {}
    taken, fractions, reads, peaks = [], [], [], []
    for _ in range(SAMPLES):
        reads.append(machine.read_bandwidth())
        peaks.append(machine.peak(case.format))
        taken.append(machine.time(case.call, times))
        fractions.append(max(case.nbytes / reads[-1], case.operations / peaks[-1]) / taken[-1])
    median_s, read, peak = (statistics.median(values) for values in (taken, reads, peaks))
    return {
        "kernel": case.kernel,
        "shape": case.shape,
        "format": case.format,
        "median_us": 1e6 * median_s,
        "min_us": 1e6 * min(taken),
        "max_us": 1e6 * max(taken),
        "gbytes_per_s": case.nbytes / median_s / 1e9,
        "goperations_per_s": case.operations / median_s / 1e9,
        "bound": "read" if case.nbytes / read >= case.operations / peak else case.format,
        "of_limit": statistics.median(fractions),
        "read_gbytes_per_s": read / 1e9,
        "peak_goperations_per_s": peak / 1e9,
        **compared,
    }


LINE = "{:24}{:18}{:>10}{:>10}{:>10}{:>9}{:>9}  {:6}{:>8}"
HEAD = LINE.format("kernel", "shape", "µs", "min", "max", "GB/s", "Gop/s", "bound", "of limit")


def line(found: dict[str, Any]) -> str:
    names = ("median_us", "min_us", "max_us", "gbytes_per_s", "goperations_per_s")
    figures = [number(found[name]) if found[name] else "-" for name in names]
    text = LINE.format(found["kernel"], found["shape"], *figures, found["bound"], f"{found['of_limit']:.2f}")
    return text + (f"{found['gain']:>8.3f}" if "gain" in found else "")


def limits_of(results: list[dict[str, Any]]) -> dict[str, float]:
    """The medians of both limits over the whole run."""
    peaks = {name: [r["peak_goperations_per_s"] for r in results if name == r["format"]] for name in cpu.PEAK_FORMATS}
    return {
        "read_gbytes_per_s": statistics.median(r["read_gbytes_per_s"] for r in results),
        **{f"{name}_goperations_per_s": statistics.median(values) for name, values in peaks.items() if values},
    }


def large_page_bytes() -> int:
    """Bytes of this process in large pages."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(next(text.split()[1] for text in rollup.splitlines() if text.startswith("AnonHugePages:")))


def as_in_a_worker(pool: cpu.Pool) -> cpu.Pool:
    """The pool, whose products in tile order have the chunks that a worker would choose."""
    if pool.library.isa == "amx" and pool.summation == "tile":
        choose_chunk(pool)
    return pool


def make_machine(threads: int, isa: str | None, summation: cpu.Summation) -> Machine:
    usable = sorted(os.sched_getaffinity(0))
    library = cpu.best_library(isa)
    if library is None:
        raise ConfigError("the kernels are not built: python setup.py build_ext --inplace")
    if threads > len(usable):
        raise ConfigError(f"--threads {threads}, but this process may use {len(usable)} cores")
    torch.set_num_threads(1)
    memory = make_cache()
    if large_page_bytes() < memory.nbytes:
        print("warning: the KV cache has no large pages, so reading it is slower than necessary", file=sys.stderr)
    pool = as_in_a_worker(cpu.Pool(library, usable[:threads], pin_caller=True, summation=summation))
    others = tuple(cpu.Pool(cpu.load_library(isa), usable[:threads]) for isa in cpu.runnable_isas())
    return Machine(pool, time.thread_time if threads == 1 else time.perf_counter, memory, others, {})


def other_pool(path: Path, pool: cpu.Pool) -> cpu.Pool:
    """The pool of another build of the same library, with as many threads."""
    library = cpu.Library(path.resolve())
    if library.isa != pool.library.isa:
        raise ConfigError(f"--against {path} is built for {library.isa}, not for {pool.library.isa}")
    cpus = sorted(os.sched_getaffinity(0))[: pool.num_threads]
    return as_in_a_worker(cpu.Pool(library, cpus, summation=pool.summation))


def cases_of(pool: cpu.Pool, memory: Tensor) -> Iterator[Case]:
    return chain(all_cases(pool, memory), latent_cases(pool, memory), sparse_cases(pool, memory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="kernels whose name contains a WORD")
    parser.add_argument("--isa", choices=cpu.ISAS, help="default: the best that this machine supports")
    parser.add_argument("--summation", choices=get_args(cpu.Summation), default="auto", help="order of 16-bit sums")
    parser.add_argument("--against", type=Path, metavar="LIBRARY", help="another build, to compare each kernel with")
    options = parser.parse_args()
    about = environment()  # before threads are pinned
    try:
        machine = make_machine(options.threads, options.isa, options.summation)
        other = other_pool(options.against, machine.pool) if options.against else None
    except ConfigError as error:
        sys.exit(f"bench_kernels: {error}")
    instructions = machine.instructions()
    print("instructions, Gop/s: " + ", ".join(f"{name} {number(rate / 1e9)}" for name, rate in instructions.items()))
    alone = cpu.Pool(machine.pool.library, [min(os.sched_getaffinity(0))])
    reading = {threads: machine.read_bandwidth(pool) / 1e9 for threads, pool in ((1, alone), (options.threads, None))}
    print("reading, GB/s: " + ", ".join(f"{number(rate)} with {threads}" for threads, rate in reading.items()))
    print(HEAD + (f"{'gain':>8}" if other else ""))
    results = []
    theirs = cases_of(other, machine.memory) if other else repeat(None)
    for case, of_other in zip(cases_of(machine.pool, machine.memory), theirs, strict=False):
        if any(word in case.kernel for word in options.only):
            results.append(measure(machine, case, of_other))
            print(line(results[-1]), flush=True)
    if not results:
        sys.exit(f"bench_kernels: no kernel is called {' or '.join(options.only)}")
    limits = limits_of(results)
    print("limits: " + ", ".join(f"{name} {number(value)}" for name, value in limits.items()))
    header = {"bench": "kernels", "threads": options.threads, "isa": machine.pool.library.isa, **about}
    header["summation"] = machine.pool.summation
    header["read_gbytes_per_s_by_threads"] = reading
    header["instructions"] = {name: rate / 1e9 for name, rate in instructions.items()}
    print(json.dumps({**header, "limits": limits, "results": results}))


if __name__ == "__main__":
    main()
