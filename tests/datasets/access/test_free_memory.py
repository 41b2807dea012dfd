"""Free memory within the limits of control groups, by made-up files of the kernel."""

from __future__ import annotations

import pytest

from ttm.datasets.hdf5 import available_memory_bytes

GIB = 2**30


@pytest.fixture
def kernel(tmp_path):
    """kernel(cgroup line, {folder: (limit, usage, files)}) -> free bytes on a machine with 8 GiB."""

    def free(line, groups, version=2):
        proc, top = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {8 * 2**20} kB\n")
        (proc / "self" / "cgroup").write_text(line)
        names = {
            2: ("memory.max", "memory.current", ""),
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        }[version]
        for folder, (limit, usage, files) in groups.items():
            group = top / folder
            group.mkdir(parents=True, exist_ok=True)
            (group / names[0]).write_text(f"{limit}\n")
            (group / names[1]).write_text(f"{usage}\n")
            stat = f"anon 5\n{names[2]}active_file {files}\n{names[2]}inactive_file {files}\n"
            (group / "memory.stat").write_text(stat)
        return available_memory_bytes(proc, top)

    return free


def test_without_a_limit_the_machine_decides(kernel):
    assert kernel("0::/a\n", {"a": ("max", GIB, 0)}) == 8 * GIB


def test_without_control_groups_the_machine_decides(kernel):
    assert kernel("", {}) == 8 * GIB


def test_a_containers_limit_counts_and_its_file_pages_are_free(kernel):
    assert kernel("0::/\n", {"": (4 * GIB, 3 * GIB, GIB // 2)}) == 2 * GIB


def test_the_tightest_of_the_groups_around_a_process_counts(kernel):
    groups = {"a": (2 * GIB, GIB, 0), "a/b": (4 * GIB, GIB, 0), "a/b/c": ("max", 0, 0)}
    assert kernel("0::/a/b/c\n", groups) == GIB


def test_the_first_version_of_control_groups(kernel):
    line = "9:cpu:/x\n4:cpuacct,memory:/job\n0::/\n"
    assert kernel(line, {"memory/job": (3 * GIB, 2 * GIB, 0)}, version=1) == GIB


def test_a_container_sees_its_own_group_at_the_top(kernel):
    line = "4:memory:/docker/0123\n"
    assert kernel(line, {"memory": (3 * GIB, GIB, 0)}, version=1) == 2 * GIB


def test_more_used_than_allowed_is_nothing_free(kernel):
    assert kernel("0::/\n", {"": (GIB, 2 * GIB, 0)}) == 0
