"""What a model's bits depend on beside its files, its settings and the request, in words: equal words, equal bits."""

import torch

from ..kernels.cpu.library import Pool
from ..models.decoder import Model

EQUAL_RANKS = (1, 2, 4)  # they add as one does: see layers/segments.py


def arithmetic(model: Model, num_ranks: int, pool: Pool | None) -> str:
    """Device, dtype, the order of sums, and the number of ranks only where it changes that order.

    Instruction sets, threads, memory and the size of batches are not in it, but for torch's own products.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    ranks = f"{num_ranks} ranks"
    if model.device != "cpu":
        return f"{model.device} {dtype} {ranks}"
    if pool is None:
        return f"torch {torch.__version__} {dtype} {ranks} {torch.get_num_threads()} threads"
    words = ["cpu", dtype]
    if model.dtype is torch.bfloat16:
        words.append(pool.summation)
    if num_ranks not in EQUAL_RANKS:
        words.append(ranks)
    return " ".join(words)
