"""Owns texts that a person keeps in a file, one on each line."""

from __future__ import annotations

from pathlib import Path

from quintet.errors import UsageError


def read_lines(path: Path, what: str, noun: str) -> list[str]:
    """The lines of a text file that are not empty, `noun`s each; `what` the file was given as."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no text in UTF-8"
        raise UsageError(f"{what}: {path} cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{what}: {path} is empty; write one {noun} on each line")
    return lines
