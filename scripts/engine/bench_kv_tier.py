"""Measure how fast blocks are stored on disk and loaded again, by one thread, as a rank's tier does.

    python scripts/engine/bench_kv_tier.py [--folder FOLDER] [--blocks 256]

Regime: blocks of qwen3-0.6b in bfloat16 (56 areas of 32 KB), files in the page cache: a load is a read into the areas
of the block, 64 KB at a time, and a checksum while they are in the cache of the core, so at most the rate of copying
memory; a store also creates a file. Median of the repetitions, and the spread between the first and third quartile.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from paged_serve.workers.kernels.cpu.library import best_library
from paged_serve.workers.tier.block_files import BlockFiles
from paged_serve.workers.tier.block_memory import HostBlocks
from paged_serve.workers.tier.checksum import checksum
from paged_serve.workers.tier.tier import Mover

AREAS, AREA_BYTES = 56, 32 << 10
KEY_BYTES = 34
REPETITIONS = 20


def gb_per_s(work: Callable[[], None], num_bytes: int) -> tuple[float, float]:
    """Median and spread; the first repetition warms up."""
    rates = []
    for _ in range(REPETITIONS + 1):
        start = time.perf_counter()
        work()
        rates.append(num_bytes / (time.perf_counter() - start) / 1e9)
    low, _, high = statistics.quantiles(rates[1:], n=4)
    return statistics.median(rates[1:]), high - low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--blocks", type=int, default=256)
    options = parser.parse_args()
    areas = [torch.randint(256, (options.blocks, AREA_BYTES), dtype=torch.uint8) for _ in range(AREAS)]
    keys = [os.urandom(KEY_BYTES) for _ in range(options.blocks)]
    num_bytes = options.blocks * AREAS * AREA_BYTES
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    figures = {}
    try:
        files = BlockFiles(folder, AREAS * AREA_BYTES, 1 << 40)
        files.open()
        for library in (best_library(), None):
            mover = Mover(HostBlocks(areas), checksum(library))

            def store(mover: Mover = mover) -> None:
                assert all(mover.store(files, block, key) for block, key in enumerate(keys))

            def load(mover: Mover = mover) -> None:
                assert all(mover.load(files, block, key) for block, key in enumerate(keys))

            for name, work in (("store", store), ("load", load)):
                median, spread = gb_per_s(work, num_bytes)
                figures[f"{name} {mover.checksum.name}"] = round(median, 3)
                print(f"{name:6s} {mover.checksum.name:8s} {median:6.2f} GB/s  ±{spread:4.2f}")
    finally:
        shutil.rmtree(folder)
    print(json.dumps({"gb_per_s": figures, "block_bytes": AREAS * AREA_BYTES, "blocks": options.blocks}))


if __name__ == "__main__":
    main()
