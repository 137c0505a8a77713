"""Console messages and progress bars outside of the training display."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from quintet.common import rank
from quintet.common.printable import printable_lines

ItemT = TypeVar("ItemT")


def say(text: str, *, any_rank: bool = False) -> None:
    """Print a line to stderr, with escapes for control characters, by default on rank 0 only.

    `any_rank` is for messages of a single process, such as errors.
    """
    if not (any_rank or rank.is_first()):
        return
    with suppress(OSError):  # the terminal may be closed, or the disk of a redirected stderr full
        sys.stderr.write(printable_lines(text.rstrip()) + "\n")
        sys.stderr.flush()


def track(items: Sequence[ItemT], done: str) -> Iterator[ItemT]:
    """Iterate over items and show progress: a bar on a terminal, else one line per 10 %.

    `done` is the verb of the message, such as "encoded"."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, done, console=Console(stderr=True))
        return
    for number, item in enumerate(items, start=1):
        yield item
        if number * 10 // len(items) > (number - 1) * 10 // len(items):
            say(f"{done} {number} of {len(items)}")
