"""Lines for the person at the console, outside of the progress display of a training."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from quintet.common import rank

ItemT = TypeVar("ItemT")


def say(text: str, *, any_rank: bool = False) -> None:
    """A line for the person, outside of any progress.

    What all processes of a launcher find alike, the first of them says. `any_rank` is for what one of them alone does
    or meets, errors among it.
    """
    if not (any_rank or rank.is_first()):
        return
    with suppress(OSError):  # nobody may be listening any more, or the disk may be full that the words are kept on
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()


def track(items: Sequence[ItemT], done: str) -> Iterator[ItemT]:
    """The items one by one, and how many are `done`: a bar, or elsewhere than on a terminal a line every tenth."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as bar

        yield from bar(items, done, console=Console(stderr=True))
        return
    for number, item in enumerate(items, start=1):
        yield item
        if number * 10 // len(items) > (number - 1) * 10 // len(items):
            say(f"{done} {number} of {len(items)}")
