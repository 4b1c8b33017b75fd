"""Chooses the number of threads of a rank, and their cores."""

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from paged_serve.protocol.messages.config import ParallelConfig

WEIGHTS_BYTES_PER_THREAD = 32 << 20
ANY_CPU = -1
_TOPOLOGY, _NODES = Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node")


def usable_cpus(topology: Path = _TOPOLOGY) -> list[int]:
    """One CPU of each core that this process may run on: products fill a core's units, so hyperthreads do not help."""
    first_of: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            core = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        first_of.setdefault(core, cpu)
    return list(first_of.values())


def run_on(cpus: Collection[int]) -> None:
    """Let the calling thread run on any of `cpus`, if there are any; it has inherited the one CPU of its parent.

    A sandbox may refuse it, and a container may have lost these CPUs since: the thread then stays where it is.
    """
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)


def nodes_of_cpus(nodes: Path = _NODES) -> dict[int, int]:
    """The NUMA node of each CPU; empty if the kernel does not provide it."""
    found: dict[int, int] = {}
    for folder in nodes.glob("node[0-9]*"):
        try:
            listed = cpus_in((folder / "cpulist").read_text())
        except (OSError, ValueError):
            continue
        found |= dict.fromkeys(listed, int(folder.name.removeprefix("node")))
    return found


def cpus_in(listed: str) -> list[int]:
    """The numbers in a list in the kernel's format, such as "0-3,8,10-11"."""
    spans = [span.split("-") for span in listed.strip().split(",") if span]
    return [cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)]


def threads_of_rank(parallel: ParallelConfig, weights_bytes: int, num_cpus: int) -> int:
    """The number of threads of a rank: as configured, otherwise an even share of the CPUs.

    A small model gets fewer: its products end before a second thread has woken up, and on a busy machine the first
    thread would then wait for the second.
    """
    worth = weights_bytes // WEIGHTS_BYTES_PER_THREAD
    return parallel.threads_per_rank or max(1, min(num_cpus // parallel.tensor_parallel_size, worth))


def pinned_cpus(
    parallel: ParallelConfig, rank: int, num_threads: int, cpus: Sequence[int], nodes: Mapping[int, int] | None = None
) -> list[int]:
    """A CPU for each thread of `rank`, or ANY_CPU for all.

    Two threads that spin on one CPU cost a time slice at every product, so two threads of this server never share a
    CPU. By default threads are pinned only if they fill all CPUs: with fewer, two servers would choose the same CPUs
    and leave the others idle, and the kernel's placement is better.
    """
    wanted = num_threads * parallel.tensor_parallel_size
    fits = wanted <= len(cpus) if parallel.pin_threads == "always" else wanted == len(cpus)
    if parallel.pin_threads == "never" or num_threads == 1 or not fits:
        return [ANY_CPU] * num_threads
    return shared_by_node(cpus, nodes or {}, num_threads, parallel.tensor_parallel_size)[rank]


def shared_by_node(cpus: Sequence[int], nodes: Mapping[int, int], num_threads: int, num_ranks: int) -> list[list[int]]:
    """`num_threads` CPUs for each rank, from the NUMA node with the most CPUs left, and from others if needed.

    Ranks then share the nodes' bandwidth evenly. If a rank has several nodes, the CPUs of each node are adjacent in its
    list, as are the parts of the weights that adjacent threads read.
    """
    left: dict[int, list[int]] = {}
    for cpu in cpus:
        left.setdefault(nodes.get(cpu, 0), []).append(cpu)
    shares = []
    for _ in range(num_ranks):
        share: list[int] = []
        while len(share) < num_threads:
            node = min(left, key=lambda node: (-len(left[node]), node))
            taken = left[node][: num_threads - len(share)]
            share, left[node] = share + taken, left[node][len(taken) :]
        shares.append(share)
    return shares
