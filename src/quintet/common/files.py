"""Single files: opening of regular files, and atomic writing, safe against crashes, full disks and symbolic links.

Does not import torch.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from quintet.common.printable import printable
from quintet.errors import UsageError


def refuse_existing(path: Path, advice: str = "choose another folder with --out", *, folder: bool = True) -> None:
    """Raise `UsageError` if `path` exists. With `folder`, an existing empty folder is accepted."""
    refuse_other_encoding(path)
    if path.exists() and not (folder and path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists already{' and is not empty' if folder else ''}; {advice}")


def refuse_other_encoding(path: Path) -> None:
    """Raise `UsageError` if a path is not UTF-8: safetensors writes files there, but does not read them again."""
    text = str(path.absolute())
    if not text.isascii() and text.encode("utf-8", "replace").decode() != text:
        raise UsageError(f"the path {printable(text)} is not UTF-8; choose another one with --out")


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


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading. Raises OSError if it is a pipe, which would wait for ever, a device or a folder.

    The stream does not have the name: some decoders would trust its extension rather than its content.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], limit: int = -1) -> bytes:
    """The content of a regular file, or its first `limit` bytes."""
    with open_regular(path) as stream:
        return stream.read(limit)


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
