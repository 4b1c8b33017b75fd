"""The limits of control groups, of both versions, that a rank detects."""

import pytest

from paged_serve.workers.distributed.cpu_quota import quota_of_cpus
from paged_serve.workers.distributed.memory import free_host_bytes

MIB = 1 << 20
V2 = "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw"
V1 = "32 31 0:29 {group} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "35 31 0:32 {group} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
NO_LIMIT_OF_V1 = "9223372036854771712\n"


@pytest.fixture
def machine(tmp_path):
    """Writes the contents of /proc and of mounted control groups below the folder that it returns."""

    def written(cgroup: str, mounts: list[str], available_bytes: int = 4096 * MIB, **files: str):
        (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
        others = b"20 1 0:5 / / rw - ext4 /dev/x rw\n21 1 0:6 / /mnt/caf\xe9 rw - ext4 /dev/y rw\n"
        (tmp_path / "proc/self/mountinfo").write_bytes(others + "\n".join(mounts).encode() + b"\n")
        (tmp_path / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {available_bytes // 1024} kB\n")
        for name, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return written


@pytest.fixture
def quota(machine):
    return lambda *arguments, **files: quota_of_cpus(machine(*arguments, **files))


@pytest.fixture
def free(machine):
    return lambda *arguments, **files: free_host_bytes(machine(*arguments, **files))


@pytest.mark.parametrize(("text", "cpus"), [("max 100000\n", None), ("250000 100000\n", 2), ("5000 100000\n", 1)])
def test_a_containers_quota_limits_the_threads(quota, text, cpus):
    assert quota("0::/", [V2]) is None
    assert quota("0::/", [V2], **{"cpu.max": text}) == cpus


def test_the_lowest_quota_of_a_group_and_its_ancestors_counts(quota):
    assert quota("0::/a/b", [V2], **{"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}) == 3
    assert quota("0::/a/b", [V2], **{"a/b/cpu.max": "200000 100000"}) == 2


def v1(folder: str, quota: int, period: int = 100000) -> dict[str, str]:
    top = "cpu,cpuacct" + folder
    return {f"{top}/cpu.cfs_quota_us": f"{quota}\n", f"{top}/cpu.cfs_period_us": f"{period}\n"}


def test_a_quota_of_version_1_counts_too(quota):
    lines = "4:memory:/\n2:cpu,cpuacct:/\n0::/"
    mounts = [V1_MEMORY.format(group="/"), V1.format(group="/")]
    assert quota(lines, mounts) is None
    assert quota(lines, mounts, **v1("", -1)) is None
    assert quota(lines, mounts, **v1("", 350000)) == 3
    assert quota(lines, mounts, **v1("", 50000, 25000)) == 2


def test_in_version_1_the_group_may_have_the_hosts_name(quota):
    """A container's mount has its own group at the top, whatever /proc calls it; on the host the group is below."""
    lines = "2:cpu,cpuacct:/docker/1f"
    assert quota(lines, [V1.format(group="/docker/1f")], **v1("", 200000)) == 2
    assert quota(lines, [V1.format(group="/docker/other")], **v1("", 200000)) == 2
    assert quota(lines, [V1.format(group="/")], **v1("", -1), **v1("/docker/1f", 400000)) == 4


def test_a_machine_with_both_versions_has_the_lower_quota(quota):
    unified = V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    lines, mounts = "1:cpu,cpuacct:/\n0::/x", [V1.format(group="/"), unified]
    assert quota(lines, mounts, **v1("", 600000), **{"unified/x/cpu.max": "500000 100000"}) == 5


def test_without_proc_there_is_no_limit(tmp_path):
    assert quota_of_cpus(tmp_path) is None
    assert free_host_bytes(tmp_path) > MIB


def group(folder: str, limit: str, used: int = 0, stat: str = "") -> dict[str, str]:
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 5\n{stat}",
    }


def group_of_v1(folder: str, limit: str, used: int = 0, stat: str = "") -> dict[str, str]:
    return {
        f"memory{folder}/memory.limit_in_bytes": limit,
        f"memory{folder}/memory.usage_in_bytes": f"{used}\n",
        f"memory{folder}/memory.stat": f"inactive_file 7\n{stat}",
    }


def test_without_a_limit_the_memory_that_the_kernel_calls_available_is_free(free):
    assert free("0::/", [V2]) == 4096 * MIB
    assert free("0::/", [V2], **group("", "max\n", MIB)) == 4096 * MIB


def test_a_containers_memory_limit_counts_without_its_page_cache(free):
    stat = f"inactive_file {MIB}\nactive_file {MIB // 2}\n"
    files = group("", str(8 * MIB), 6 * MIB, stat)
    assert free("0::/", [V2], **files) == 3 * MIB + MIB // 2
    assert free("0::/", [V2], available_bytes=MIB, **files) == MIB


def test_the_least_memory_left_of_a_group_and_its_ancestors_is_free(free):
    """As with MemoryMax= of a systemd unit, and that of its slice."""
    files = group("a/b", str(8 * MIB), MIB) | group("a", str(9 * MIB), 5 * MIB)
    assert free("0::/a/b", [V2], **files) == 4 * MIB
    assert free("0::/a/b", [V2], **files, **{"a/b/memory.high": str(3 * MIB)}) == 2 * MIB


def test_a_memory_limit_of_version_1_counts_too(free):
    mounts = [V1.format(group="/"), V1_MEMORY.format(group="/")]
    stat = f"total_inactive_file {MIB}\ntotal_active_file {MIB}\n"
    files = group_of_v1("", NO_LIMIT_OF_V1, 50 * MIB) | group_of_v1("/x", str(8 * MIB), 6 * MIB, stat)
    assert free("4:memory:/x\n2:cpu,cpuacct:/", mounts, **files) == 4 * MIB
    assert free("4:memory:/\n2:cpu,cpuacct:/x", mounts, **files) == 4096 * MIB
