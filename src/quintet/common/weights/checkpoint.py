"""Owns checkpoints on disk: an atomic directory of safetensors and JSON, hashed file by file.

A checkpoint is written under a temporary name, hashed, synced and renamed; it either stands whole or not at all.
`SHA256SUMS` covers every file and ends with a hash of itself, in a form that `sha256sum -c` accepts. Nothing here
knows what the tensors mean. No pickle is written or read. A group of tensors is a file, or, where several processes
wrote it (`sharding.py`), a folder of files that hold parts of tensors and say where these lie; both are read alike.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from quintet.common.files import one_line, open_no_follow, replace_text, sync
from quintet.errors import CheckpointError

FORMAT = 1
ROOT = "checkpoints"
"""The folder of a run that holds its checkpoints."""
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


def is_checkpoint_name(folder: Path) -> bool:
    """Whether a folder has the name of a checkpoint."""
    return _NAME.fullmatch(folder.name) is not None and folder == folder_of(folder.parent, step_of(folder))


def steps(root: Path) -> list[Path]:
    """The checkpoints that stand, oldest first; unfinished ones do not count."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if is_checkpoint_name(path) and path.is_dir()), key=step_of)


def write(root: Path, step: int, contents: Contents) -> Path:
    """Write one checkpoint. Whatever happens, `root` holds either all of it under its name or nothing of it."""
    target = folder_of(root, step)
    write_folder(target, contents)
    update_latest(target)
    return target


def update_latest(target: Path) -> None:
    """For people: resuming looks at the folders. The checkpoint stands, so that it must not be called a failure."""
    with suppress(OSError):
        write_pointer(target.parent, "latest", target)


def write_folder(target: Path, contents: Contents) -> None:
    """Write the files to a temporary neighbour of `target`, then rename it into place."""
    temporary = begin_folder(target)
    try:
        finish_folder(target, contents)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_of(target: Path) -> Path:
    return target.parent / f"{_TEMPORARY}{target.name}"


def begin_folder(target: Path) -> Path:
    """The temporary neighbour, empty."""
    temporary = temporary_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return temporary


def finish_folder(target: Path, contents: Contents, hashed: Mapping[str, str] | None = None) -> None:
    """Add files to the temporary neighbour and rename it; `hashed` are files that are there and synced already."""
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
        _save_tensors(tensors, path)
    for name, value in contents.json.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for name, text in contents.text.items():
        (folder / name).write_text(text, encoding="utf-8")


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """As `save_file`, whose temporary file only its owner may read, with the permissions of any other file."""
    with open_no_follow(path, "wb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    save_file(unshared({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}), path)
    path.chmod(mode)


def unshared(
    tensors: Mapping[str, Tensor], local: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Tensor]:
    """Copies of those that share memory with one before, as tied weights do: safetensors refuse that.

    `local` is what this process holds of a tensor.
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
    in_parts = is_sharded(folder, name)
    path = folder / name if in_parts else folder / f"{name}.safetensors"
    try:
        if not in_parts:
            _refuse_irregular(path)
        tensors = _join(path) if in_parts else load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {path}: {one_line(error)}") from None
    for key, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"{path}: {key[:100]!r} is of type {tensor.dtype}, which quintet never writes")
        if tensor.ndim > _MOST_AXES:
            raise CheckpointError(f"{path}: {key[:100]!r} has {tensor.ndim} axes, more than torch can compute with")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path}: {key[:100]!r} holds numbers that are not finite; use another checkpoint")
    return tensors


class _Part(NamedTuple):
    """Where a part of a tensor is kept, and which part it is."""

    file: Path
    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))

    def overlaps(self, other: _Part) -> bool:
        return all(
            max(own.start, theirs.start) < min(own.stop, theirs.stop)
            for own, theirs in zip(self.slices, other.slices, strict=True)
        )


def is_sharded(folder: Path, name: str) -> bool:
    """Whether a group of tensors was written by several processes."""
    return (folder / name).is_dir() and not (folder / f"{name}.safetensors").exists()


def sharded_shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of such a group, once joined."""
    try:
        return {key: _whole_shape(key, parts) for key, parts in _find_parts(folder / name).items()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"cannot read {folder / name}: {one_line(error)}") from None


def _join(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for key, parts in _find_parts(folder).items():
        shape = _whole_shape(key, parts)
        for part in parts:
            with safe_open(part.file, framework="pt") as opened:
                values = opened.get_tensor(key)
            whole = tensors.setdefault(key, torch.zeros(shape, dtype=values.dtype))
            if values.dtype != whole.dtype:
                raise ValueError(f"the parts of {key[:100]!r} are of different kinds of numbers")
            whole[part.slices] = values
    return tensors


def _find_parts(folder: Path) -> dict[str, list[_Part]]:
    found: dict[str, list[_Part]] = defaultdict(list)
    for file in sorted(folder.glob("*.safetensors")):
        _refuse_irregular(file)
        with safe_open(file, framework="pt") as opened:
            places = json.loads((opened.metadata() or {})["DCP_SHARDING_INFO"])
            for key in opened.keys():  # noqa: SIM118 - it is no mapping
                offsets = places[key]["saved_offsets"]
                found[key].append(_Part(file, tuple(offsets), tuple(opened.get_slice(key).get_shape())))
    return dict(found)


def _whole_shape(key: str, parts: Sequence[_Part]) -> tuple[int, ...]:
    """From what the files say of themselves, which must not make room for more than they hold."""
    axes = len(parts[0].shape)
    for part in parts:
        if len(part.offsets) != axes or len(part.shape) != axes or not all(type(each) is int for each in part.offsets):
            raise ValueError(f"the parts of {key[:100]!r} have different axes")
    shape = tuple(max(part.offsets[axis] + part.shape[axis] for part in parts) for axis in range(axes))
    if min((each for part in parts for each in part.offsets), default=0) < 0:
        raise ValueError(f"a part of {key[:100]!r} lies outside of it")
    if any(one.overlaps(other) for one, other in combinations(parts, 2)):
        raise ValueError(f"parts of {key[:100]!r} lie over each other")
    if sum(math.prod(part.shape) for part in parts) != math.prod(shape):
        raise ValueError(f"the parts of {key[:100]!r} do not make a whole")
    return shape


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


def write_pointer(root: Path, name: str, folder: Path) -> None:
    """Let the text file `name` (latest, best) name a checkpoint."""
    replace_text(root / name, folder.name + "\n")


def read_pointer(root: Path, name: str) -> Path | None:
    """The checkpoint that `name` names, if it still stands."""
    try:
        folder = root / read_regular(root / name).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return folder if folder in steps(root) else None


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` and the best, and what a killed process left half-way."""
    best = read_pointer(root, "best")
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
