"""Console messages and progress bars outside of the training display."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from quintet.common import rank

ItemT = TypeVar("ItemT")


def say(text: str, *, any_rank: bool = False) -> None:
    """Print a line to stderr, by default on rank 0 only.

    `any_rank` is for messages of a single process, such as errors.
    """
    if not (any_rank or rank.is_first()):
        return
    with suppress(OSError):  # the terminal may be closed, or the disk of a redirected stderr full
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()


_said: set[str] = set()


def say_once(topic: str, text: str) -> None:
    """As `say`, but only the first message about a topic in this process."""
    if topic not in _said:
        _said.add(topic)
        say(text)


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
