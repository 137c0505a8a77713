"""Console messages and progress bars outside of the training display."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from quintet.common import rank, streams
from quintet.common.printable import printable_lines

ItemT = TypeVar("ItemT")


def say(text: str, *, any_rank: bool = False) -> None:
    """Print a line to stderr, with escapes for control characters, by default on rank 0 only.

    `any_rank` is for messages of a single process, such as errors.
    """
    if not (any_rank or rank.is_first()):
        return
    streams.write_error(printable_lines(text.rstrip()) + "\n")


_said: set[str] = set()


def say_once(topic: str, text: str) -> None:
    """As `say`, but only the first message about a topic in this process."""
    if topic not in _said:
        _said.add(topic)
        say(text)


def track(items: Sequence[ItemT], done: str) -> Iterator[ItemT]:
    """Iterate over items and show progress: a bar on a terminal, else one line per 10 %.

    `done` is the verb of the message, such as "encoded"."""
    if streams.is_terminal():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, done, console=Console(stderr=True))
        return
    for number, item in enumerate(items, start=1):
        yield item
        if number * 10 // len(items) > (number - 1) * 10 // len(items):
            say(f"{done} {number} of {len(items)}")
