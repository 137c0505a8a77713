"""Owns where caches live, and who may write: never in the data's folder, in the user's own cache folder unless a key
names another, and one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from quintet.common import files


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet"


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Let one process at a time make what is kept; a dead one does not keep the lock."""
    with files.open_no_follow(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def part_lock(lock: IO[bytes], part: int, wait: bool) -> Iterator[bool]:
    """Let one process at a time make one part of a cache, whose lock file is open; a dead one does not keep the lock.

    Yields whether this process is the one; False only where it does not `wait` for another.
    """
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, part)
    except (BlockingIOError, PermissionError):  # both mean that another process has it
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN, 1, part)
