"""The properties of the machine that a rank detects."""

import errno
import os

import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import CacheConfig, Config, ModelConfig, ParallelConfig
from paged_serve.workers.distributed.memory import (
    check_shared_memory,
    free_host_bytes,
    peak_resident_bytes,
    resident_bytes,
)
from paged_serve.workers.distributed.threads import (
    ANY_CPU,
    WEIGHTS_BYTES_PER_THREAD,
    cpus_in,
    nodes_of_cpus,
    pinned_cpus,
    run_on,
    shared_by_node,
    threads_of_rank,
    usable_cpus,
)
from paged_serve.workers.kernels.cpu.library import runnable_isas
from paged_serve.workers.process.rank import DEMO_MODEL, Rank
from paged_serve.workers.process.rank_setup import check_settings, create_pool

MIB = 1 << 20


def test_this_machine_has_some_memory():
    assert free_host_bytes() > MIB
    assert MIB < resident_bytes() <= peak_resident_bytes()


def test_ranks_share_the_cpus_evenly_by_default():
    large = 16 * WEIGHTS_BYTES_PER_THREAD
    assert threads_of_rank(ParallelConfig(), large, 8) == 8
    assert threads_of_rank(ParallelConfig(tensor_parallel_size=3), large, 8) == 2
    assert threads_of_rank(ParallelConfig(tensor_parallel_size=64), large, 8) == 1
    assert threads_of_rank(ParallelConfig(threads_per_rank=7), large, 2) == 7


def test_a_small_model_gets_fewer_threads():
    assert threads_of_rank(ParallelConfig(), weights_bytes=6 << 20, num_cpus=8) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("pin", ["auto", "always", "never"])
def test_no_two_threads_of_a_server_are_pinned_to_one_cpu(pin, threads, ranks):
    cpus = [1, 4, 5, 7, 9, 10, 30, 31]
    parallel = ParallelConfig(tensor_parallel_size=ranks, pin_threads=pin)
    chosen = [cpu for rank in range(ranks) for cpu in pinned_cpus(parallel, rank, threads, cpus)]
    assert len(chosen) == threads * ranks
    if pin == "never" or threads == 1 or len(chosen) > len(cpus) or (pin == "auto" and len(chosen) < len(cpus)):
        assert set(chosen) == {ANY_CPU}
    else:
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(cpus)


def test_one_hyperthread_of_each_core_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings + "\n")
    assert usable_cpus(tmp_path) == [0, 1, 6]


def test_a_thread_stays_where_it_is_if_its_cpus_are_refused(monkeypatch):
    def refused(pid, cpus):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    run_on([1 << 10])
    run_on([])


def test_the_node_of_each_cpu_is_read_from_the_kernels_lists(tmp_path):
    assert nodes_of_cpus(tmp_path) == {}
    for name, text in {"node0": "0-1,4\n", "node1": "2-3\n", "node10": "\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(text)
    (tmp_path / "power").mkdir()
    assert nodes_of_cpus(tmp_path) == {0: 0, 1: 0, 4: 0, 2: 1, 3: 1}
    assert cpus_in("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]


ODD_AND_EVEN = {cpu: cpu % 2 for cpu in range(16)}  # the numbering of many machines with two sockets


def test_a_ranks_threads_lie_on_one_node_where_they_fit():
    for ranks, threads in ((2, 8), (4, 4), (2, 4), (8, 2), (3, 4)):
        shares = shared_by_node(range(16), ODD_AND_EVEN, threads, ranks)
        assert all(len({ODD_AND_EVEN[cpu] for cpu in share}) == 1 for share in shares)
        assert len({cpu for share in shares for cpu in share}) == ranks * threads
        by_node = [sum(ODD_AND_EVEN[share[0]] == node for share in shares) for node in (0, 1)]
        assert abs(by_node[0] - by_node[1]) <= 1


def test_a_rank_of_several_nodes_has_each_nodes_cpus_side_by_side():
    assert shared_by_node(range(16), ODD_AND_EVEN, 16, 1) == [[*range(0, 16, 2), *range(1, 16, 2)]]
    first, second, third = shared_by_node(range(12), ODD_AND_EVEN, 4, 3)
    assert (first, second, third) == ([0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 9, 11])


def test_without_nodes_ranks_take_the_cpus_in_order():
    assert pinned_cpus(ParallelConfig(tensor_parallel_size=2), 1, 2, [1, 4, 5, 7]) == [5, 7]
    parallel = ParallelConfig(tensor_parallel_size=2)
    assert pinned_cpus(parallel, 1, 2, [0, 1, 2, 3], ODD_AND_EVEN) == [1, 3]


def test_shared_memory_too_small_for_nccl_is_refused_with_the_numbers(tmp_path, monkeypatch):
    free_blocks = 100
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 1000, 500, free_blocks, 1, 1, 1, 0, 255))
    )
    with pytest.raises(ConfigError, match="409600 bytes left; nccl needs 16777216"):
        check_shared_memory(tmp_path)
    free_blocks = 1 << 20
    check_shared_memory(tmp_path)


def test_the_configured_order_of_sums_is_that_of_the_kernels():
    if not runnable_isas():
        pytest.skip("the kernels are not built")
    for order in ("dot", "tile"):
        config = Config(model=ModelConfig(summation=order), parallel=ParallelConfig(pin_threads="never"))
        pool = create_pool(config, 0, DEMO_MODEL, "cpu")
        assert pool.summation == order
        pool.close()


def test_an_order_of_sums_that_no_kernel_supports_is_refused():
    config = Config(model=ModelConfig(cpu_isa="torch", summation="tile"))
    with pytest.raises(ConfigError, match="summation=tile"):
        create_pool(config, 0, DEMO_MODEL, "cpu")


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8 needs the CUDA kernels"),
        ({"gpu_memory_utilization": 0.5}, r"gpu_memory_utilization=0\.5 is for CUDA devices"),
        ({"max_model_len": 1 << 20}, "max_model_len=1048576 is more than the model's 2048 positions"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused_before_its_weights_are_read(settings, refusal, tmp_path):
    (tmp_path / "config.json").write_bytes((DEMO_MODEL / "config.json").read_bytes())
    length = settings.pop("max_model_len", None)
    model = ModelConfig(model=str(tmp_path), device="cpu", cpu_isa="torch", max_model_len=length)
    config = Config(model=model, cache=CacheConfig(**settings))
    with pytest.raises(ConfigError, match=refusal):
        Rank.load(config, 0, str(tmp_path / "rendezvous"), lambda done, total: None)


def test_the_cache_dtype_to_use_instead_is_named_before_the_weights_are_read(tmp_path, make_pool):
    (tmp_path / "config.json").write_bytes((DEMO_MODEL / "config.json").read_bytes())
    config = Config(model=ModelConfig(), cache=CacheConfig(kv_cache_dtype="fp8"))
    expected = "auto" if (pool := make_pool()) is None else "int8"
    with pytest.raises(ConfigError, match=rf"this server computes on cpu in bfloat16; use kv_cache_dtype={expected}$"):
        check_settings(config, tmp_path, "cpu", pool)
