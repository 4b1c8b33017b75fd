"""What a rank finds out about its machine."""

import os

import pytest

from paged_serve.protocol.config import Config, ParallelConfig
from paged_serve.workers.memory import free_host_bytes
from paged_serve.workers.rank import WEIGHTS_BYTES_PER_THREAD, threads_of_rank

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


def test_ranks_share_the_cores_evenly_unless_told_otherwise():
    cores = len(os.sched_getaffinity(0))
    large = cores * WEIGHTS_BYTES_PER_THREAD
    assert threads_of_rank(Config(), large) == cores
    assert threads_of_rank(Config(parallel=ParallelConfig(tensor_parallel_size=64)), large) == max(1, cores // 64)
    assert threads_of_rank(Config(parallel=ParallelConfig(threads_per_rank=7)), large) == 7


def test_a_small_model_gets_no_threads_that_it_would_only_wait_for():
    assert threads_of_rank(Config(), weights_bytes=6 << 20) == 1
