"""The device of the threads beside a rank's steps, with an emulated device per thread, as CUDA has one."""

import queue
import threading
from types import SimpleNamespace

import pytest
import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.loading.adapters import Adapter, LoadAdapter
from paged_serve.workers.adapters import loading
from paged_serve.workers.adapters.loading import AdapterLoading
from paged_serve.workers.runner.completions import Completions
from paged_serve.workers.tier.tier import Tier

RANK = 3


@pytest.fixture
def used(monkeypatch):
    """The current devices that threads have reported by `note`; this thread's is RANK."""
    local = threading.local()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(local, "device", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(local, "device", device))
    torch.cuda.set_device(RANK)
    return queue.SimpleQueue()


def note(used):
    used.put(torch.cuda.current_device())


def test_steps_are_awaited_on_the_device_of_the_rank(used):
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: note(used))
    completions = Completions()
    completions.watch(event)
    assert used.get(timeout=60) == RANK
    completions.close()


def test_adapters_are_placed_on_the_device_of_the_rank(used, monkeypatch):
    def place(adapter, adapters):
        note(used)
        raise ConfigError("enough")

    monkeypatch.setattr(loading, "place_adapter", place)
    adapters = AdapterLoading(SimpleNamespace(num_places=1, sites=[]), RANK)
    adapters.start(LoadAdapter(1, Adapter("a", "/nowhere", "")))
    assert used.get(timeout=60) == RANK
    adapters.close()


def test_blocks_are_moved_on_the_device_of_the_rank(used):
    def new_mover():
        note(used)
        return SimpleNamespace(memory=SimpleNamespace(bytes_per_block=1), checksum=None)

    tier = Tier(RANK, lambda checksum: [], new_mover)
    assert [used.get(timeout=60) for _ in ("stores", "loads")] == [RANK] * 2
    tier.close()
