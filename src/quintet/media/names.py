"""Owns file names made of captions: whatever a caption holds, its file can be written, and no two are the same."""

from __future__ import annotations

_LONGEST = 80
"""Bytes of the words: with a number and an extension well below what any file system takes."""


def caption_name(number: int, caption: str, extension: str) -> str:
    """`007-a-red-circle.mp4`. The number keeps equal captions apart, and a name from being one that means something:
    empty, hidden, a path, or a device."""
    words = "".join(letter if letter.isalnum() else " " for letter in caption).split()
    text = "-".join(words).encode("utf-8", "ignore")[:_LONGEST].decode("utf-8", "ignore").strip("-")
    return f"{number:03d}-{text}{extension}" if text else f"{number:03d}{extension}"
