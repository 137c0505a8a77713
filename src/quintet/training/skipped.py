"""Messages about unreadable items: the first few by name, then counts; `data.json` lists all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

NAMED = 3
"""Items of one reason that are named."""
_NUMBER = re.compile(r"[0-9]+")


class SkippedMessages:
    """The lines to print about the unreadable items of a run, as they are found."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """Items so far by reason, without the numbers in it, which differ from file to file."""

    def lines(self, new: Mapping[str, str]) -> Iterator[str]:
        """The lines about more items, by name with their reasons."""
        before = self._counts.copy()
        examples: dict[str, str] = {}
        for name, reason in sorted(new.items()):
            kind = _NUMBER.sub("0", reason)
            self._counts[kind] += 1
            if self._counts[kind] <= NAMED:
                yield f"unreadable item replaced: {name} ({reason})"
            else:
                examples.setdefault(kind, reason)
        for kind, reason in examples.items():
            # At the first one beyond those that are named, and whenever there are ten times as many.
            if before[kind] <= NAMED or len(str(before[kind])) < len(str(self._counts[kind])):
                yield (
                    f"unreadable items replaced for such a reason so far: {self._counts[kind]} ({reason}); data.json "
                    "lists all"
                )
