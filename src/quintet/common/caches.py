"""Owns where caches live, and who may write: never in the data's folder, in the user's own cache folder unless a key
names another, and one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quintet.common import files


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet"


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Let one process at a time make what is kept; a dead one does not keep the lock."""
    with files.open_own(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
