"""The memory of a CUDA device that is left for the KV cache, tested without a device."""

import contextlib

import pytest
import torch

from paged_serve.protocol.errors import MemoryShortage
from paged_serve.workers.kv import kv_cache
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.runner.cuda_device import CudaDevice, GraphPool
from paged_serve.workers.runner.cuda_memory import kv_budget

from ..checkpoint.small_configs import geometry

GIB = 1 << 30


def test_the_cache_gets_the_memory_left_by_weights_a_full_step_graphs_and_others():
    assert kv_budget(0.9, 80 * GIB, 20 * GIB) == 52 * GIB


def test_a_share_that_is_too_small_is_refused_with_a_sufficient_one():
    with pytest.raises(
        MemoryShortage, match=r"gpu_memory_utilization=0\.2 of .* raise gpu_memory_utilization above 0\.25"
    ):
        kv_budget(0.2, 80 * GIB, 20 * GIB)


def test_a_full_device_is_refused_with_the_alternatives():
    with pytest.raises(MemoryShortage, match="use tensor_parallel_size, a smaller model"):
        kv_budget(0.9, 80 * GIB, 80 * GIB)


def test_a_cache_that_a_device_cannot_hold_is_refused_with_the_option_that_sized_it(tmp_path, monkeypatch):
    """Another process may take memory of the device after it was measured."""

    def empty(shape, dtype, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kv_cache, "_empty", empty)
    with pytest.raises(MemoryShortage, match="lower gpu_memory_utilization or kv_cache_memory_bytes"):
        KVCache.allocate(geometry(tmp_path), 1000, 16, device="cuda")


@pytest.fixture
def cuda(monkeypatch):
    """Records the torch.cuda calls that capture a graph."""
    calls = []

    class Graph:
        def replay(self):
            calls.append("replay")

    @contextlib.contextmanager
    def graph(graph, **options):
        calls.append(options)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")
    return calls


def test_other_threads_may_wait_during_a_capture(cuda):
    """In torch's default capture mode, an event that the completions thread waits for would end the capture."""
    replay = GraphPool().capture(lambda: cuda.append("run"))
    assert cuda == [{"pool": "a pool", "capture_error_mode": "thread_local"}, "run"]
    replay()
    assert cuda[-1] == "replay"


def test_graphs_of_one_runner_share_a_pool_and_runners_do_not(cuda, monkeypatch):
    handles = iter(range(9))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    device = CudaDevice()
    for pool in (device.graph_pool(), device.graph_pool()):
        pool.capture(lambda: None)
        pool.capture(lambda: None)
    assert [options["pool"] for options in cuda] == [0, 0, 1, 1]
