"""Cache folders and their locks.

Caches live in the user's cache folder unless a key names another one, and never in the folder of the data. One process
writes at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from quintet.common import files


def default_folder() -> Path:
    """The cache folder of the user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet"


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock file. The lock is released when the process dies."""
    with files.open_no_follow(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def part_lock(lock: IO[bytes], part: int, wait: bool) -> Iterator[bool]:
    """Hold the lock of part number `part` of a cache, whose lock file is open. A dead process holds no lock.

    Yields whether this process holds the lock; with `wait`, it always does.
    """
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, part)
    except (BlockingIOError, PermissionError):  # both mean that another process holds the lock
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, part)
