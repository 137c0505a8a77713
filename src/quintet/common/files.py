"""Atomic writing of single files: a crash, a full disk or a hostile link costs nothing. Without torch."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from quintet.errors import UsageError


def refuse_existing(path: Path, advice: str = "choose another folder with --out", *, folder: bool = True) -> None:
    """Nothing is overwritten; where a `folder` is to be written, an empty one may be there."""
    if path.exists() and not (folder and path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists already{' and is not empty' if folder else ''}; {advice}")


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


def open_no_follow(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing; an OSError where a link or a pipe lies in its place, which would lead elsewhere."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, mode, buffering=0, opener=opened)


@contextmanager
def atomic_write(path: Path, *, durable: bool = True, concurrent: bool = False) -> Iterator[Path]:
    """A path beside `path` to write to; at the end of the block that file takes the place of `path`.

    A reader sees the old or the new file, never a part, and where writing fails the old one stays. `durable` files
    are on the disk before they are seen. `concurrent` is for files that several processes may write at once. All
    others have one temporary name, so that the next write removes what a killed process left.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex if concurrent else 'writing'}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, durable: bool = True) -> None:
    """Write a text file at once; see `atomic_write`."""
    replace_bytes(path, text.encode(), durable)


def replace_bytes(path: Path, content: bytes | memoryview, durable: bool = True, concurrent: bool = False) -> None:
    """Write a file at once; see `atomic_write`."""
    with (
        atomic_write(path, durable=durable, concurrent=concurrent) as temporary,
        io.BufferedWriter(open_no_follow(temporary, "wb")) as file,
    ):
        file.write(content)
