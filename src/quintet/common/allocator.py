"""Keeps the memory of freed tensors in this process, so that the next tensors do not cost page faults again."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of mallopt(3) of the GNU C library.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER = -1
_SETTINGS = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)
"""Environment variables with which a person sets the same."""
TOP_PAD = 64 * 2**20
"""Bytes by which the heap grows at least."""


def keep_freed_memory() -> None:
    """Allocate all tensors from the heap, and do not return freed memory to the system until the process ends.

    By default the GNU C library maps each large tensor separately and unmaps it when it is freed. The kernel then fills
    the pages of the next one with zeros, one page fault for every 4 kB, which can take longer than the computation.
    Other C libraries have no such setting and are left as they are.

    This is for processes of quintet's own. A server with many threads would keep the memory of each of them.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SETTINGS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)  # further heaps, one for each thread, are of 64 MB: a large tensor would fill one alone
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_TOP_PAD, TOP_PAD)
