"""Cache folders and their locks.

Caches live in the user's cache folder unless a key names another one, and never in the folder of the data. One process
writes at a time. A folder that cannot be written is one sentence that names the folder and what to set.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from quintet.common import files
from quintet.errors import RunError

VARIABLE = "the environment variable XDG_CACHE_HOME"
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of a write or a lock; they need not name a file."""


def default_folder() -> Path:
    """The cache folder of the user."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(chosen or Path.home() / ".cache") / "quintet"
    except RuntimeError:
        raise RunError(
            f"this user has no home folder for caches; set {VARIABLE}, or data.cache_dir, to a writable folder"
        ) from None


@contextmanager
def writing_cache(folder: Path, setting: str = f"data.cache_dir, or {VARIABLE},") -> Iterator[None]:
    """While a cache is written: the error of a full, read-only or otherwise unusable folder names what to set.

    Other errors pass, such as those of a download into the cache."""
    try:
        yield
    except OSError as error:
        inside = error.filename is not None and os.path.abspath(error.filename).startswith(os.path.abspath(folder))
        if not inside and error.errno not in _UNWRITABLE:
            raise
        raise RunError(
            f"cannot write to the cache folder {folder} ({error.strerror or error}); set {setting} to another folder"
        ) from None


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock file, for writing into its folder, which is created if needed. The lock is released when
    the process dies."""
    with writing_cache(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
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
