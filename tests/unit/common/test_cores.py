"""The cores that affinity, hyper-threading and cgroups leave to a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quintet.common.cores import usable_cores


def machine(root: Path, files: dict[str, str]) -> Path:
    """A folder in place of the root, with some files of the kernel."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


THREADS = {
    f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        (THREADS, 4),
        ({**THREADS, "proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "250000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "3:memory:/x\n2:cpu,cpuacct:/docker/1",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
        ),
    ],
    ids=["unknown", "two threads per core", "quota of a parent", "no quota", "half a core", "version 1", "no quota 1"],
)
def test_cores_are_counted_within_all_limits(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path, files)) == expected


def test_affinity_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 4, 5}, raising=False)
    assert usable_cores(machine(tmp_path, THREADS)) == 2
