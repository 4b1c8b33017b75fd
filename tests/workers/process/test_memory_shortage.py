"""Which errors of a start are shortages of memory, and how they are described."""

import errno
import mmap
import os

import numpy as np
import pytest
import torch

from paged_serve.protocol.errors import MemoryShortage
from paged_serve.protocol.messages.config import Config, ParallelConfig
from paged_serve.workers.process.memory_shortage import shortage_named

TOO_MUCH = 1 << 50  # bytes; no process has so much address space


def on_a_full_device(num_bytes):
    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes.")


@pytest.mark.parametrize(
    "allocate",
    [
        lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8),
        lambda num_bytes: np.empty(num_bytes, np.uint8),
        lambda num_bytes: mmap.mmap(-1, num_bytes),
        bytearray,
    ],
)
def test_a_failed_allocation_is_named_with_what_is_needed_what_there_is_and_the_remedy(allocate):
    config = Config(parallel=ParallelConfig(tensor_parallel_size=2))
    words = (
        r"^memory ran out while the model was loaded: its checkpoint has [1-9]\d+ bytes, for all ranks \(2\); of this "
        r"host's memory this one holds \d+ bytes, and \d+ are free; use --quantization or a smaller model, or free"
    )
    with pytest.raises(MemoryShortage, match=words), shortage_named(config):
        allocate(TOO_MUCH)


def test_a_full_device_is_named_with_its_own_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 70)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10, 80))
    words = r"of this device's memory this one holds 70 bytes, and 10 are free; use .*, a smaller model or more devices"
    with pytest.raises(MemoryShortage, match=words), shortage_named(Config()):
        on_a_full_device(20)


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, os.strerror(errno.ENOENT)), RuntimeError("a rank is gone")])
def test_another_error_stays_as_it_is(error):
    with pytest.raises(type(error)) as raised, shortage_named(Config()):
        raise error
    assert raised.value is error
