"""Compare the speed of the CUDA kernels with the device's limits and with torch's kernels.

    python scripts/kernel_speed/bench_cuda.py GROUP [--executor emulator]

GROUP is decode, prefill, elementwise, experts, sampler, products or launch.

Regimes: decode attention, rotation, norms and gates are bound by memory, prefill attention and products of many rows by
the tensor cores, the sampler by its passes over the logits, which mostly stay in the L2 cache. Kernels are timed as
replays of CUDA graphs on buffers that together exceed the L2 cache (cuda_timing.py); figures are medians of 25 samples
and half the interquartile range. The device's limits are measured first: a copy of 1 GiB and a product of 8192 x 8192
matrices. The last line is JSON. With --executor emulator, tiny shapes run on the CPU to check that the program works.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cuda_cases import BF16, GATE, HIDDEN, Case, Setting, decode, elementwise, prefill, random
from cuda_expert_cases import experts
from cuda_sampling_cases import sampler
from cuda_timing import EagerTimer, GraphTimer, Timer, copies_of

from paged_serve.frontend.bench.report.tables import number
from paged_serve.workers.backends.cuda.products.fixed_rows import PRODUCT_ROWS, FixedRowsLinear
from paged_serve.workers.kernels.cuda.elementwise import rms_norm
from paged_serve.workers.kernels.cuda.requirements import architecture

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.cuda.executors import DEVICES, launcher_of

Row = dict[str, Any]
GIB = 1 << 30
MATRIX = 8192
LAUNCHES = 2000


def setting_for(executor: str) -> Setting:
    launcher, device = launcher_of(executor), DEVICES[executor]
    if executor == "emulator":
        return Setting(launcher, device, "sm_90a", multiprocessors=2, tiny=True)
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = architecture(found.name, (found.major, found.minor))
    return Setting(launcher, device, arch, found.multi_processor_count, tiny=False)


def limits(setting: Setting, timer: Timer) -> tuple[float, float]:
    """Bytes per second of a copy, and operations per second of a matrix product."""
    nbytes, size = (1 << 20, 64) if setting.tiny else (GIB, MATRIX)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    a, b = torch.randn((2, size, size), device=setting.device).to(BF16)
    product = torch.empty_like(a)
    copy_us = timer.time([lambda: target.copy_(source)]).median_us
    product_us = timer.time([lambda: torch.mm(a, b, out=product)]).median_us
    return 2 * nbytes / copy_us * 1e6, 2 * size**3 / product_us * 1e6


def measured(setting: Setting, timer: Timer, cases: Iterator[Case]) -> Iterator[Row]:
    bandwidth, peak = limits(setting, timer)
    yield {"kernel": "limits", "GB/s": bandwidth / 1e9, "TFLOP/s": peak / 1e12}
    for case in cases:
        found = timer.time(case.calls)
        floor_us = max(case.nbytes / bandwidth, case.operations / peak) * 1e6
        row: Row = {
            "kernel": case.kernel,
            "shape": case.shape,
            "µs": found.median_us,
            "±": found.spread_us,
            "GB/s": case.nbytes / found.median_us / 1e3,
            "TFLOP/s": case.operations / found.median_us / 1e6 if case.operations else "",
            "of the floor": floor_us / found.median_us,
        }
        for name, calls in case.rivals.items():
            try:
                row[f"{name} µs"] = timer.time(calls).median_us
            except RuntimeError as error:  # torch has no kernel for this shape
                row[f"{name} µs"] = str(error).partition("\n")[0][:60]
        yield row
        del case  # free its memory before the next case allocates as much


def products(setting: Setting, timer: Timer) -> Iterator[Row]:
    """The library's products of other numbers of rows than PRODUCT_ROWS, which would speed up prompts.

    They are allowed only if all rows have the bits that they have among PRODUCT_ROWS.
    """
    _, peak = limits(setting, timer)
    shapes = [(48, 64)] if setting.tiny else [(HIDDEN, 6144), (HIDDEN, HIDDEN), (HIDDEN, 2 * GATE), (GATE, HIDDEN)]
    for inputs, outputs in shapes:
        copies = 1 if setting.tiny else copies_of(2 * inputs * outputs)
        weights = [random(setting, outputs, inputs) for _ in range(copies)]
        for rows in (128, 256) if setting.tiny else (128, 256, 512, 2048):
            x, out = random(setting, rows, inputs), random(setting, rows, outputs)
            calls = [partial(torch.mm, x, weight.t(), out=out) for weight in reversed(weights)]
            taken = timer.time(calls)
            calls[-1]()
            operations, same = 2 * rows * inputs * outputs, (out == FixedRowsLinear(weights[0])(x)).all(1)
            yield {
                "kernel": "product",
                "shape": f"{rows} x {inputs} x {outputs}",
                "µs": taken.median_us,
                "±": taken.spread_us,
                "TFLOP/s": operations / taken.median_us / 1e6,
                "of the peak": operations / taken.median_us * 1e6 / peak,
                f"rows with the bits of {PRODUCT_ROWS}": int(same.sum()),
            }


def launch(setting: Setting, timer: Timer) -> Iterator[Row]:
    """CPU time of launching a small kernel, compared with a small kernel of torch."""
    hidden = torch.zeros((1, 256), dtype=BF16, device=setting.device)
    weight, out = torch.ones(256, device=setting.device), torch.empty_like(hidden)
    kernels: dict[str, Callable[[], object]] = {
        "rms_norm through the launcher": lambda: rms_norm(setting.launcher, hidden, weight, 1e-5, None, out),
        "torch add, in place": lambda: hidden.add_(1),
    }
    for name, call in kernels.items():
        call()
        began = time.perf_counter()
        for _ in range(count := 3 if setting.tiny else LAUNCHES):
            call()
        yield {"kernel": name, "µs of the CPU": (time.perf_counter() - began) / count * 1e6}
        if setting.device == "cuda":
            torch.cuda.synchronize()


GROUPS = {"decode": decode, "prefill": prefill, "elementwise": elementwise, "experts": experts}


def rows_of(group: str, setting: Setting) -> Iterator[Row]:
    wait = torch.cuda.synchronize if setting.device == "cuda" else lambda: None
    eager = EagerTimer(wait, *([2] if setting.tiny else []))
    if group == "launch":
        return launch(setting, eager)
    if group == "sampler":
        return measured(setting, eager, sampler(setting))
    timer = eager if setting.tiny else GraphTimer()
    if group == "products":
        return products(setting, timer)
    return measured(setting, timer, GROUPS[group](setting))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=[*GROUPS, "sampler", "products", "launch"])
    parser.add_argument("--executor", choices=list(DEVICES), default="cuda")
    options = parser.parse_args(arguments)
    rows = []
    for row in rows_of(options.group, setting_for(options.executor)):
        rows.append(row)
        shown = (f"{name} {number(value) if isinstance(value, float) else value}" for name, value in row.items())
        print(", ".join(shown), flush=True)
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
