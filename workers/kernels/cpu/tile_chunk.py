"""Measures with which chunks of a panel products in tile order are fastest; they have the same bits with any.

A chunk is used again for each 16 rows, so it should stay in the first-level cache. A thread's part of that depends on
what runs on its core's other thread, which may belong to another virtual machine, and a circle that exceeds it finds
nothing there. With smaller chunks, sums are read and written more often.
"""

import logging
import time
from collections.abc import Callable
from statistics import median

import torch

from .gemm import gemm
from .library import Pool
from .packing import pack_float

CHUNKS = (4, 6, 8)  # pieces of 4 KB
SAMPLES = 15  # of each, in turn; together some milliseconds
ROWS, INPUTS, OUTPUTS = 256, 1024, 64  # OUTPUTS: of each thread, one panel

log = logging.getLogger(__name__)


def choose_chunk(pool: Pool) -> None:
    """Set the chunk with which all threads of the pool together are fastest."""
    product = _product(pool)
    times: dict[int, list[float]] = {pieces: [] for pieces in CHUNKS}
    for _ in range(SAMPLES):
        for pieces, taken in times.items():
            pool.library.set_chunk_pieces(pieces)
            taken.append(product())
    chosen = fastest(times)
    pool.library.set_chunk_pieces(chosen)
    log.info("products in tile order use chunks of %d KB us_by_kb=%s", 4 * chosen, _microseconds(times))


def fastest(times: dict[int, list[float]]) -> int:
    """The chunk with the least median time."""
    return min(times, key=lambda pieces: median(times[pieces]))


def _product(pool: Pool) -> Callable[[], float]:
    """A function that multiplies once and returns the seconds that it took."""
    x = torch.zeros((ROWS, INPUTS), dtype=torch.bfloat16)
    weight = pack_float(torch.zeros((OUTPUTS * pool.num_threads, INPUTS), dtype=torch.bfloat16))
    out = torch.empty((ROWS, weight.outputs), dtype=torch.bfloat16)

    def run() -> float:
        began = time.perf_counter()
        gemm(pool, x, weight, out=out)
        return time.perf_counter() - began

    run()  # touches the memory
    return run


def _microseconds(times: dict[int, list[float]]) -> dict[int, int]:
    return {4 * pieces: round(1e6 * median(taken)) for pieces, taken in times.items()}
