"""Describes the arithmetic of a model. Besides files, settings and request, its bits depend only on this description:
equal text means equal bits."""

import torch

from ..kernels.cpu.library import Pool
from ..layers.model import Model


def arithmetic(model: Model, num_ranks: int, pool: Pool | None) -> str:
    """Device, dtype, the order of sums, and the number of ranks only where it changes that order.

    Instruction sets, threads, memory and batch sizes are not part of it, except for torch's own products.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    ranks = f"{num_ranks} ranks"
    if model.device != "cpu":
        return f"{model.device} {dtype} {ranks}"
    if pool is None:
        return f"torch {torch.__version__} {dtype} {ranks} {torch.get_num_threads()} threads"
    words = ["cpu", dtype]
    if model.dtype.itemsize == 2:
        words.append(pool.summation)
    if not model.backend.adds_as_one_rank:
        words.append(ranks)
    if model.libraries:
        words.append(model.libraries)
    return " ".join(words)
