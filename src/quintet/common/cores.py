"""How many CPU cores this process may use. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """The physical cores that the CPU affinity and the CPU quota of the cgroup leave to this process; at least 1.

    `root` is the folder that contains `sys` and `proc`."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = _physical_cores(allowed, root)
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def _physical_cores(cpus: Iterable[int], root: Path) -> int:
    """The number of cores of some logical CPUs; a CPU of unknown topology counts as a core."""
    cores = set()
    for cpu in cpus:
        siblings = str(cpu)
        with suppress(OSError):
            siblings = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        cores.add(siblings)
    return len(cores)


def _quotas(root: Path) -> Iterator[float]:
    """The CPU quotas, in cores, of the cgroup of this process and of the groups that contain it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            top = root / "sys/fs/cgroup" / controllers
        else:
            continue
        own = PurePosixPath(group.lstrip("/"))
        for folder in (own, *own.parents):
            yield from _quota(top / folder)


def _quota(folder: Path) -> Iterator[float]:
    """The quota of one cgroup, of version 2 or 1; nothing if there is none."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        yield int(quota) / int(period)  # ValueError for "max"
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if int(quota) > 0:
            yield int(quota) / int(period)
