"""Reading beside a training that saves and deletes checkpoints at any time.

`reading` recognises a checkpoint that was deleted while it was read, and `again_if_pruned` chooses again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from quintet.errors import PrunedError, QuintetError

T = TypeVar("T")

MAX_REPEATS = 100


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Raise `PrunedError` for any error in the block if the checkpoint no longer exists. It is renamed before its files
    are deleted."""
    try:
        yield
    except (QuintetError, OSError):
        if folder.is_dir():
            raise
        raise PrunedError(
            f"{folder} was deleted while it was read: its run is still training and keeps only the newest checkpoints "
            "(checkpoint.keep); choose another step"
        ) from None


def again_if_pruned(read: Callable[[], T], fixed: bool = False) -> T:
    """The result of `read`, which is repeated if what it reads is deleted. `fixed`: it is not, because the user named
    the checkpoint."""
    for _ in range(0 if fixed else MAX_REPEATS):
        with suppress(PrunedError):
            return read()
    return read()
