"""What a rank finds out about its machine."""

import os

import pytest

from paged_serve.protocol.config import ParallelConfig
from paged_serve.protocol.errors import ConfigError
from paged_serve.workers.memory import check_shared_memory, free_host_bytes, peak_resident_bytes, resident_bytes
from paged_serve.workers.threads import (
    ANY_CPU,
    WEIGHTS_BYTES_PER_THREAD,
    pinned_cpus,
    quota_of_cpus,
    threads_of_rank,
    usable_cpus,
)

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """Writes the files that the kernel would show, and reads them."""

    def free(available_kib: int, **cgroup: str) -> int:
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n")
        for name, text in cgroup.items():
            (tmp_path / f"memory.{name}").write_text(text)
        return free_host_bytes(meminfo, tmp_path)

    return free


def test_without_a_container_what_the_kernel_calls_available_is_free(machine):
    assert machine(4096) == 4 * MIB
    assert machine(4096, max="max\n", current=str(MIB)) == 4 * MIB


def test_a_containers_limit_counts_but_not_its_page_cache(machine):
    stat = f"anon 5\ninactive_file {MIB}\nactive_file {MIB // 2}\n"
    assert machine(99999, max=str(8 * MIB), current=str(6 * MIB), stat=stat) == 3 * MIB + MIB // 2
    assert machine(1024, max=str(8 * MIB), current=str(6 * MIB), stat=stat) == MIB


def test_this_machine_has_some_memory():
    assert free_host_bytes() > MIB
    assert MIB < resident_bytes() <= peak_resident_bytes()


def test_ranks_share_the_cpus_evenly_unless_told_otherwise():
    large = 16 * WEIGHTS_BYTES_PER_THREAD
    assert threads_of_rank(ParallelConfig(), large, 8) == 8
    assert threads_of_rank(ParallelConfig(tensor_parallel_size=3), large, 8) == 2
    assert threads_of_rank(ParallelConfig(tensor_parallel_size=64), large, 8) == 1
    assert threads_of_rank(ParallelConfig(threads_per_rank=7), large, 2) == 7


def test_a_small_model_gets_no_threads_that_it_would_only_wait_for():
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


def test_of_a_cores_two_halves_one_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings + "\n")
    assert usable_cpus(tmp_path) == [0, 1, 6]


@pytest.mark.parametrize(("text", "cpus"), [("max 100000\n", None), ("250000 100000\n", 2), ("5000 100000\n", 1)])
def test_a_containers_quota_limits_the_threads(tmp_path, text, cpus):
    assert quota_of_cpus(tmp_path) is None
    (tmp_path / "cpu.max").write_text(text)
    assert quota_of_cpus(tmp_path) == cpus


def test_shared_memory_too_small_for_nccl_is_refused_with_the_numbers(tmp_path, monkeypatch):
    free_blocks = 100
    monkeypatch.setattr(
        os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 1000, 500, free_blocks, 1, 1, 1, 0, 255))
    )
    with pytest.raises(ConfigError, match="409600 bytes left; nccl needs 16777216"):
        check_shared_memory(tmp_path)
    free_blocks = 1 << 20
    check_shared_memory(tmp_path)
