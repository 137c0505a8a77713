"""Texts that are safe to print: names that somebody else chose may hold characters that control a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def printable(text: str) -> str:
    """The text, safe for a terminal and one line of a log: lone surrogates and control characters are escaped."""
    encodable = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), encodable)


def printable_lines(text: str) -> str:
    """The same for a text of several lines; its line ends and tabs stay."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
