"""Atomic writing of single files: safe against crashes, full disks and symbolic links. Does not import torch."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from quintet.errors import UsageError


def refuse_existing(path: Path, advice: str = "choose another folder with --out", *, folder: bool = True) -> None:
    """Raise `UsageError` if `path` exists. With `folder`, an existing empty folder is accepted."""
    if path.exists() and not (folder and path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists already{' and is not empty' if folder else ''}; {advice}")


def one_line(error: Exception) -> str:
    """An error message on one line of at most 200 characters: libraries may quote the file that they read."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


def sync(path: Path) -> None:
    """Flush a file or a directory entry to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_no_follow(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing. Raises OSError if the path is a symbolic link or a pipe."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, mode, buffering=0, opener=opened)


@contextmanager
def atomic_write(path: Path, *, durable: bool = True, concurrent: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder; at the end of the block that file replaces `path`.

    Readers see the old or the new file, never a partial one. If writing fails, the old file stays. `durable` files are
    flushed to disk before the rename. Set `concurrent` if several processes may write the file at once. Other files
    share one temporary name, so that the next write removes the leftovers of a killed process.
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


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `target`; at the end of the block it becomes `target`, which may be an empty
    folder before. If the block fails, nothing of it remains."""
    target = target.resolve()
    temporary = target.with_name(f".{target.name}.writing")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed process
    temporary.mkdir()
    try:
        yield temporary
        if target.is_dir():  # it may be the working folder of this process, which cannot be replaced
            for path in sorted(temporary.iterdir()):
                path.rename(target / path.name)
            temporary.rmdir()
        else:
            temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_text(path: Path, text: str, durable: bool = True) -> None:
    """Write a text file atomically; see `atomic_write`."""
    replace_bytes(path, text.encode(), durable)


def replace_bytes(path: Path, content: bytes | memoryview, durable: bool = True, concurrent: bool = False) -> None:
    """Write a file atomically; see `atomic_write`."""
    with (
        atomic_write(path, durable=durable, concurrent=concurrent) as temporary,
        io.BufferedWriter(open_no_follow(temporary, "wb")) as file,
    ):
        file.write(content)
