"""Checkpoints on disk: an atomic directory of safetensors and JSON, with a SHA-256 of every file.

A checkpoint is written under a temporary name, hashed, synced and renamed, so it exists completely or not at all.
`SHA256SUMS` covers every file and ends with a hash of itself, in a form that `sha256sum -c` accepts. This module does
not know the meaning of the tensors. No pickle is written or read. `tensor_groups.py` reads the tensors.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from quintet.common.files import one_line, open_no_follow, open_regular, replace_text, sync
from quintet.common.weights.pruning import reading
from quintet.errors import CheckpointError, PrunedError

FORMAT = 1
ROOT = "checkpoints"
"""The folder of a run that holds its checkpoints."""
MANIFEST = "SHA256SUMS"
_SELF = "# sha256 of the lines above: "
_NAME = re.compile(r"step-[0-9]{8,}")
_FILE = re.compile(r"(?=.{1,200}$)\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)
_TEMPORARY = ".writing-"
_DELETING = ".deleting-"


@dataclass
class Contents:
    """The contents of a checkpoint: groups of tensors and JSON values by file name without suffix, and text files."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    json: dict[str, Any] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)


def folder_of(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def is_checkpoint_name(folder: Path) -> bool:
    """Whether a folder is named like a checkpoint, `step-…`."""
    return _NAME.fullmatch(folder.name) is not None and folder == folder_of(folder.parent, step_of(folder))


def steps(root: Path) -> list[Path]:
    """The folders of all finished checkpoints, oldest first."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if is_checkpoint_name(path) and path.is_dir()), key=step_of)


def write(root: Path, step: int, contents: Contents) -> Path:
    """Write one checkpoint atomically: whatever happens, `root` contains all of it or nothing of it."""
    target = folder_of(root, step)
    write_folder(target, contents)
    update_latest(target)
    return target


def update_latest(target: Path) -> None:
    """Update the pointer file `latest`, which is for people: resuming lists the folders.

    Errors are ignored, because the checkpoint itself is complete."""
    with suppress(OSError):
        write_pointer(target.parent, "latest", target)


def write_folder(target: Path, contents: Contents) -> None:
    """Write the files to a temporary folder next to `target`, then rename it to `target`."""
    temporary = begin_folder(target)
    try:
        finish_folder(target, contents)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_of(target: Path) -> Path:
    return target.parent / f"{_TEMPORARY}{target.name}"


def begin_folder(target: Path) -> Path:
    """Create the empty temporary folder of `target`."""
    temporary = temporary_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return temporary


def finish_folder(target: Path, contents: Contents, hashed: Mapping[str, str] | None = None) -> None:
    """Add files to the temporary folder and rename it. `hashed` lists files that are already written and synced."""
    temporary = temporary_of(target)
    hashed = hashed or {}
    try:
        _write_files(temporary, contents)
        _write_manifest(temporary, hashed)
        for path in sorted(temporary.rglob("*"), reverse=True):
            if path.relative_to(temporary).as_posix() not in hashed:
                sync(path)
        sync(temporary)
        _rename(temporary, target)
        sync(target.parent)
    except SafetensorError as error:
        raise _as_os_error(error, target) from error


def _as_os_error(error: SafetensorError, path: Path) -> OSError:
    """The native safetensors writer reports the OS error number only in its message."""
    number = re.search(r"os error ([0-9]+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else OSError(str(error))


def _rename(temporary: Path, target: Path) -> None:
    """Rename a finished folder to `target`. A non-empty folder of that name is set aside, never deleted."""
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
        _save_tensors(tensors, path)
    for name, value in contents.json.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name, text in contents.text.items():
        (folder / name).write_text(text, encoding="utf-8")


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Like `save_file`, but with default permissions: `save_file` creates files that only their owner can read."""
    with open_no_follow(path, "wb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    save_file(unshared({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}), path)
    path.chmod(mode)


def unshared(
    tensors: Mapping[str, Tensor], local: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Tensor]:
    """Clone tensors that share memory with an earlier one, such as tied weights: safetensors rejects shared memory.

    `local` returns the local shard of a tensor.
    """
    ready: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        memory = local(tensor).untyped_storage().data_ptr()
        ready[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return ready


def _write_manifest(folder: Path, hashed: Mapping[str, str]) -> None:
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = "".join(f"{hashed.get(name) or hash_file(folder / name)}  {name}\n" for name in files)
    own = hashlib.sha256(lines.encode()).hexdigest()
    (folder / MANIFEST).write_text(f"{lines}{_SELF}{own}\n", encoding="utf-8")


def verify(folder: Path) -> None:
    """Raise CheckpointError unless exactly the listed files exist and all hashes match."""
    listed = _listed(folder)
    inside = sorted(folder.rglob("*"))
    for link in (path for path in inside if path.is_symlink()):
        raise CheckpointError(
            f"{link} is a symbolic link, which checkpoints never contain; replace it by the file itself"
        )
    present = {path.relative_to(folder).as_posix() for path in inside if path.is_file()} - {MANIFEST}
    for name in sorted(present.symmetric_difference(listed)):
        raise CheckpointError(f"{folder / name} is {'missing' if name in listed else 'not part of the checkpoint'}")
    for name, expected in listed.items():
        _check_hash(folder / name, expected)


def verify_used(folder: Path) -> None:
    """Raise CheckpointError if tensors or settings of an exported folder differ from the hashes in its manifest.

    Other files may be edited and added, such as the README, and a folder without a manifest is accepted: its owner may
    change what was exported.
    """
    if not (folder / MANIFEST).is_file():
        return
    for name, expected in _listed(folder).items():
        if name.endswith((".safetensors", ".json")) and (folder / name).exists():
            _check_hash(folder / name, expected, f"; export it again, or delete {MANIFEST} if you changed it yourself")


def _listed(folder: Path) -> dict[str, str]:
    """File name to SHA-256, from the manifest; raises CheckpointError if it is damaged."""
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
        raise CheckpointError(f"{folder / MANIFEST} lists a name that is not a file of a checkpoint")
    return listed


def newest_file(root: Path, name: str) -> Path | None:
    """The file `name` of the newest checkpoint in which it is intact; reads no other files. None if there is none."""
    for folder in reversed(steps(root)):
        with suppress(CheckpointError, OSError):
            if _listed(folder).get(name) == hash_file(folder / name):
                return folder / name
    return None


def _check_hash(path: Path, expected: str, advice: str = "") -> None:
    try:
        found = hash_file(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if found != expected:
        raise CheckpointError(f"{path} is damaged{advice}")


def read_json(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    try:
        return json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {one_line(error)}") from None


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file. Raises OSError for a pipe, which could block for ever."""
    refuse_irregular(path)
    return path.read_bytes()


def refuse_irregular(path: Path) -> None:
    """Raise OSError unless a path is a regular file."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def newest_sound(root: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that passes `verify`, and the errors of newer ones."""
    problems: list[str] = []
    for folder in reversed(steps(root)):
        try:
            with reading(folder):
                verify(folder)
            return folder, problems
        except PrunedError:  # there are newer ones by now
            return newest_sound(root)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"every checkpoint in {root} is damaged: {'; '.join(problems)}")
    raise CheckpointError(f"{root} contains no checkpoint yet")


def set_aside(folder: Path, why: str) -> Path:
    """Rename a damaged or abandoned checkpoint, so that it is no longer listed; it stays on disk."""
    target = folder.with_name(f"{why}-{folder.name}")
    number = 1
    while target.exists():
        number += 1
        target = folder.with_name(f"{why}-{folder.name}-{number}")
    os.rename(folder, target)
    return target


def write_pointer(root: Path, name: str, folder: Path) -> None:
    """Write the name of a checkpoint to the pointer file `name` (`latest` or `best`)."""
    replace_text(root / name, folder.name + "\n")


def read_pointer(root: Path, name: str) -> Path | None:
    """The checkpoint that the pointer file `name` refers to, or None if it does not exist."""
    before = None
    while True:
        try:
            target = read_regular(root / name).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        if root / target in steps(root):
            return root / target
        if target == before:
            return None
        before = target  # read again: it may have been replaced, and its former target deleted


def prune(root: Path, keep: int) -> None:
    """Delete all checkpoints but the newest `keep` and the best, and the leftovers of killed processes."""
    best = read_pointer(root, "best")
    for leftover in (*root.glob(f"{_TEMPORARY}*"), *root.glob(f"{_DELETING}*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for folder in steps(root)[:-keep]:
        if folder != best:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Rename, then delete: a half-deleted checkpoint must not have the name of a checkpoint."""
    deleting = folder.with_name(f"{_DELETING}{folder.name}")
    shutil.rmtree(deleting, ignore_errors=True)
    os.rename(folder, deleting)
    shutil.rmtree(deleting)


def hash_file(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def hashes(folder: Path) -> Mapping[str, str]:
    """File name to SHA-256, for comparing two checkpoints."""
    return {p.relative_to(folder).as_posix(): hash_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}
