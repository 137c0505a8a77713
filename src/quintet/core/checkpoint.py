"""Owns checkpoints on disk: an atomic directory of safetensors and JSON, hashed file by file.

A checkpoint is written under a temporary name, hashed, synced and renamed; it either stands whole or not at all.
`SHA256SUMS` covers every file and ends with a hash of itself, in a form that `sha256sum -c` accepts. Nothing here
knows what the tensors mean. No pickle is written or read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from quintet.errors import CheckpointError

FORMAT = 1
MANIFEST = "SHA256SUMS"
_SELF = "# sha256 of the lines above: "
_NAME = re.compile(r"step-[0-9]{8,}")
_FILE = re.compile(r"(?=.{1,200}$)\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_TEMPORARY = ".writing-"
_DOOMED = ".deleting-"
_DTYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
}


@dataclass
class Contents:
    """What a checkpoint holds: groups of tensors and JSON values by file name without suffix, and plain text."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    json: dict[str, Any] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def is_named(folder: Path) -> bool:
    """Whether a folder has the name of a checkpoint."""
    return _NAME.fullmatch(folder.name) is not None and folder == folder_of(folder.parent, step_of(folder))


def steps(root: Path) -> list[Path]:
    """The checkpoints that stand, oldest first; unfinished ones do not count."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if is_named(path) and path.is_dir()), key=step_of)


def write(root: Path, step: int, contents: Contents) -> Path:
    """Write one checkpoint. Whatever happens, `root` holds either all of it under its name or nothing of it."""
    target = folder_of(root, step)
    write_folder(target, contents)
    # For people: resuming looks at the folders. The checkpoint stands, so that it must not be called a failure.
    with suppress(OSError):
        point(root, "latest", target)
    return target


def write_folder(target: Path, contents: Contents) -> None:
    """Write the files to a temporary neighbour of `target`, then rename it into place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{_TEMPORARY}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write_files(temporary, contents)
        _write_manifest(temporary)
        for path in sorted(temporary.rglob("*"), reverse=True):
            sync(path)
        sync(temporary)
        _rename(temporary, target)
        sync(target.parent)
    except SafetensorError as error:
        raise _as_os_error(error, target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """The compiled writer gives the number of the operating system's error only in its text."""
    number = re.search(r"os error ([0-9]+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else OSError(str(error))


def _rename(temporary: Path, target: Path) -> None:
    """Put a finished folder in its place. What stands there with something in it is set aside, never deleted."""
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        set_aside(target, "replaced")
        os.rename(temporary, target)


def _write_files(folder: Path, contents: Contents) -> None:
    for name, tensors in contents.tensors.items():
        path = folder / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(_apart(tensors), path)
    for name, value in contents.json.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name, text in contents.text.items():
        (folder / name).write_text(text, encoding="utf-8")


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Ready to be saved, none sharing memory with another, as tied weights do."""
    ready: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().contiguous().cpu()
        memory = value.untyped_storage().data_ptr()
        ready[name] = value.clone() if memory in seen else value
        seen.add(memory)
    return ready


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = "".join(f"{hash_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    own = hashlib.sha256(lines.encode()).hexdigest()
    (folder / MANIFEST).write_text(f"{lines}{_SELF}{own}\n", encoding="utf-8")


def verify(folder: Path) -> None:
    """Raise CheckpointError unless every file is there, is listed, and is what it was."""
    try:
        text = read_regular(folder / MANIFEST).decode("ascii")
    except (OSError, UnicodeDecodeError):
        raise CheckpointError(f"{folder} has no readable {MANIFEST}") from None
    lines, _, own = text.rpartition(_SELF)
    if own != f"{hashlib.sha256(lines.encode()).hexdigest()}\n":
        raise CheckpointError(f"{folder / MANIFEST} is damaged")
    listed = {name: value for value, _, name in (line.partition("  ") for line in lines.splitlines())}
    if len(listed) != len(lines.splitlines()):
        raise CheckpointError(f"{folder / MANIFEST} names a file twice")
    if not all(map(_FILE.fullmatch, listed)):
        raise CheckpointError(f"{folder / MANIFEST} names what is no file of a checkpoint")
    inside = sorted(folder.rglob("*"))
    for link in (path for path in inside if path.is_symlink()):
        raise CheckpointError(f"{link} is a link, which no checkpoint has; put the file itself in its place")
    present = {path.relative_to(folder).as_posix() for path in inside if path.is_file()} - {MANIFEST}
    for name in sorted(present.symmetric_difference(listed)):
        raise CheckpointError(f"{folder / name} is {'missing' if name in listed else 'not part of the checkpoint'}")
    for name, expected in listed.items():
        try:
            found = hash_file(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error.strerror}") from None
        if found != expected:
            raise CheckpointError(f"{folder / name} is damaged")


_MOST_AXES = 64


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a file that nobody may have vouched for: it may be anything, and none of it is executed."""
    path = folder / f"{name}.safetensors"
    try:
        _refuse_irregular(path)
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot read {path}: {one_line(error)}") from None
    for key, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"{path}: {key[:100]!r} is of type {tensor.dtype}, which quintet never writes")
        if tensor.ndim > _MOST_AXES:
            raise CheckpointError(f"{path}: {key[:100]!r} has {tensor.ndim} axes, more than torch can compute with")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path}: {key[:100]!r} holds numbers that are not finite; use another checkpoint")
    return tensors


def read_json(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    try:
        return json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {one_line(error)}") from None


def read_regular(path: Path) -> bytes:
    """The bytes of a file; an OSError at once for a pipe, whose other end may never come."""
    _refuse_irregular(path)
    return path.read_bytes()


def _refuse_irregular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def one_line(error: Exception) -> str:
    """What a library says of a file that others wrote: it may quote the file, at any length."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


def newest_sound(root: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with the newer ones."""
    problems: list[str] = []
    for folder in reversed(steps(root)):
        try:
            verify(folder)
            return folder, problems
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no sound checkpoint is left in {root}: {'; '.join(problems)}")
    raise CheckpointError(f"{root} holds no checkpoint yet")


def set_aside(folder: Path, why: str) -> Path:
    """Take a damaged or abandoned checkpoint out of the row, so that it is not one of the newest; it stays on disk."""
    target = folder.with_name(f"{why}-{folder.name}")
    number = 1
    while target.exists():
        number += 1
        target = folder.with_name(f"{why}-{folder.name}-{number}")
    os.rename(folder, target)
    return target


def point(root: Path, name: str, folder: Path) -> None:
    """Let the text file `name` (latest, best) name a checkpoint."""
    replace_text(root / name, folder.name + "\n")


def pointed(root: Path, name: str) -> Path | None:
    """The checkpoint that `name` names, if it still stands."""
    try:
        folder = root / read_regular(root / name).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return folder if folder in steps(root) else None


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` and the best, and what a killed process left half-way."""
    best = pointed(root, "best")
    for left in (*root.glob(f"{_TEMPORARY}*"), *root.glob(f"{_DOOMED}*")):
        shutil.rmtree(left, ignore_errors=True)
    for folder in steps(root)[:-keep]:
        if folder != best:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Renamed first: a half-deleted checkpoint must not stand under a checkpoint's name."""
    doomed = folder.with_name(f"{_DOOMED}{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(folder: Path) -> Mapping[str, str]:
    """File name to SHA-256, for comparing two checkpoints."""
    return {p.relative_to(folder).as_posix(): hash_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


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
    """Replace a small text file so that a reader sees the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with open_own(temporary, "wb") as file:
            file.write(text.encode())
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
