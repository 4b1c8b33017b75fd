"""Names a shortage of memory during a start: what was needed, what there is, and the remedies."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from paged_serve.protocol.errors import MemoryShortage
from paged_serve.protocol.messages.config import Config

from ..distributed.memory import free_host_bytes, resident_bytes
from .rank import DEMO_MODEL
from .rank_setup import checkpoint_bytes

TORCH_TEXTS = ("allocate memory", "out of memory")  # of the RuntimeError for an allocation or a map that failed


@contextmanager
def shortage_named(config: Config) -> Iterator[None]:
    """Raises MemoryShortage if memory runs out within."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise MemoryShortage(_description(config, error)) from error


def is_shortage(error: MemoryError | OSError | RuntimeError) -> bool:
    """Whether memory of the host or of a device could not be allocated."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError):
        return any(text in str(error) for text in TORCH_TEXTS)
    return True


def _description(config: Config, error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        held, free = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
        of, remedy = "this device", "--quantization, a smaller model or more devices (--tp)"
    else:
        held, free = resident_bytes(), free_host_bytes()
        of, remedy = "this host", "--quantization or a smaller model"
    num_bytes, ranks = checkpoint_bytes(Path(config.model.model or DEMO_MODEL)), config.parallel.tensor_parallel_size
    return (
        f"memory ran out while the model was loaded: its checkpoint has {num_bytes} bytes, for all ranks ({ranks}); of "
        f"{of}'s memory this one holds {held} bytes, and {free} are free; use {remedy}, or free memory "
        f"({str(error) or type(error).__name__})"
    )
