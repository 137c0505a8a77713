"""Owns how single files are written so that a crash, a full disk or a hostile link costs nothing. Without torch."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from typing import IO


def one_line(error: Exception) -> str:
    """What a library says of a file that others wrote: it may quote the file, at any length."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


def sync(path: Path) -> None:
    """Have the operating system put a file or a directory entry on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_own(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing; an OSError where a link or a pipe lies in its place, which would lead elsewhere."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, mode, buffering=0, opener=opened)


def replace_text(path: Path, text: str, durable: bool = True) -> None:
    """Replace a text file so that a reader sees the old or the new one, never a part."""
    replace_bytes(path, text.encode(), durable)


def replace_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """The same for what is no text."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with io.BufferedWriter(open_own(temporary, "wb")) as file:
            file.write(content)
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
