"""How many threads a rank computes with, and on which cores."""

import os
from collections.abc import Sequence
from pathlib import Path

from paged_serve.protocol.config import ParallelConfig

WEIGHTS_BYTES_PER_THREAD = 32 << 20
ANY_CPU = -1
_TOPOLOGY, _CGROUP = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup")


def usable_cpus(topology: Path = _TOPOLOGY) -> list[int]:
    """One CPU of each core that this process may run on: products fill a core's units, so its second half adds none."""
    first_of: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            core = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        first_of.setdefault(core, cpu)
    return list(first_of.values())


def quota_of_cpus(cgroup: Path = _CGROUP) -> int | None:
    """How many CPUs' time a container may use; None: no limit. Threads beyond it would wait for one another."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def threads_of_rank(parallel: ParallelConfig, weights_bytes: int, num_cpus: int) -> int:
    """As configured, else an even share of the CPUs.

    A small model's products end sooner than a second thread has woken; on a busy machine the first then waits for it.
    """
    worth = weights_bytes // WEIGHTS_BYTES_PER_THREAD
    return parallel.threads_per_rank or max(1, min(num_cpus // parallel.tensor_parallel_size, worth))


def pinned_cpus(parallel: ParallelConfig, rank: int, num_threads: int, cpus: Sequence[int]) -> list[int]:
    """A CPU for each thread of `rank`, or ANY_CPU for all.

    Two threads that spin on one CPU cost a time slice at every product, so no two of this server's ever share one. By
    default threads are pinned only if they fill all CPUs: with fewer, another server would choose the same ones as we
    while the rest stand idle, and the kernel finds better places.
    """
    wanted = num_threads * parallel.tensor_parallel_size
    fits = wanted <= len(cpus) if parallel.pin_threads == "always" else wanted == len(cpus)
    if parallel.pin_threads == "never" or num_threads == 1 or not fits:
        return [ANY_CPU] * num_threads
    return list(cpus[rank * num_threads : (rank + 1) * num_threads])
