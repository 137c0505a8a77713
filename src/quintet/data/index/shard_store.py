"""Stores of shards: a local folder, or a URL (`s3://…`, `https://…`, any file system of fsspec) with a local cache.

A remote shard is downloaded in full when one of its items is first read, by one process while the others wait, and then
stays in the cache. The cache key is the URL, the size and the version that the server reports. A failed request is
printed and tried again with exponential backoff; the last failure is an error that names the shard. A download of the
wrong size is never used, and the hash of each download is kept beside it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from quintet.common import files
from quintet.common.caches import exclusive_lock, writing_cache
from quintet.common.logging import say
from quintet.common.outputs import mark_output, output_kind
from quintet.data.index.marker import LARGEST_MARKER, MARKER
from quintet.data.index.shard_index import INDEX_NAME
from quintet.errors import RunError, UsageError
from quintet.media import audio
from quintet.media import image as images
from quintet.media import mesh as meshes
from quintet.media import video as videos

MEDIA = images.EXTENSIONS | audio.EXTENSIONS | meshes.EXTENSIONS | videos.EXTENSIONS
TAR, PARQUET = ".tar", ".parquet"


class ShardFile(NamedTuple):
    """A shard of a store: its path relative to the root, its size, and its version (modification time or ETag)."""

    name: str
    size: int
    version: str


class Store(Protocol):
    """A folder or URL of shards."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    def list_shards(self) -> list[ShardFile]:
        """Its shards, sorted by name."""

    def index(self) -> Path | None:
        """The index beside the shards, if there is one."""

    def marker(self) -> Path | None:
        """The marker of a synthetic data set beside the shards, if there is one."""

    def file(self, name: str) -> Path:
        """A shard as a local file."""

    def copy_hash(self, name: str) -> str:
        """The hash of the local copy of a shard when it was made; empty if it is no copy, or the hash is unknown."""

    def discard(self, name: str) -> bool:
        """Delete the local copy of a shard, so that `file` makes it again; false if the file is not a copy."""


@dataclass(frozen=True)
class FolderStore:
    """Shards in a local folder; `only` is the name of a single file, if the user named one."""

    root: Path
    only: str | None = None

    @property
    def label(self) -> str:
        return str(self.root if self.only is None else self.root / self.only)

    def list_shards(self) -> list[ShardFile]:
        names = [self.only] if self.only is not None else chosen_shards(_files_below(self.root))
        return [self._shard_file(name) for name in names]

    def _shard_file(self, name: str) -> ShardFile:
        try:
            facts = os.stat(self.root / name)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
        except OSError as error:
            raise UsageError(f"the shard {self.root / name} cannot be opened: {error.strerror}") from None
        return ShardFile(name, facts.st_size, str(facts.st_mtime_ns))

    def index(self) -> Path | None:
        path = self.root / INDEX_NAME
        return path if self.only is None and path.is_file() else None

    def marker(self) -> Path | None:
        return self.root / MARKER

    def file(self, name: str) -> Path:
        return self.root / name

    def copy_hash(self, name: str) -> str:
        return ""

    def discard(self, name: str) -> bool:
        return False


def chosen_shards(files: Iterable[str]) -> list[str]:
    """The shards among these files. Parquet files beside tar files are metadata tables, not shards."""
    names = [*files]
    for extension in (TAR, PARQUET):
        chosen = sorted(name for name in names if name.lower().endswith(extension))
        if chosen:
            return chosen
    return []


def is_shard(name: str) -> bool:
    return name.lower().endswith((TAR, PARQUET))


def is_url(root: str | os.PathLike[str]) -> bool:
    """Whether the data is at a URL rather than in a local folder."""
    return "://" in str(root)


def holds_shards(root: Path) -> bool:
    """Whether a folder is read as shards: it has an index, or it holds shards and no media file in any subfolder.

    Media of classes are in subfolders, and an archive beside those is not the data to train on.
    """
    if root.exists() and not root.is_dir():
        return is_shard(root.name)
    if (root / INDEX_NAME).is_file():
        return True
    found = False
    for name in _files_below(root):
        if os.path.splitext(name)[1].lower() in MEDIA:
            return False
        found = found or is_shard(name)
    return found


def output_folders(root: Path) -> list[tuple[str, str]]:
    """The subfolders that quintet wrote, such as runs, and what they are."""
    left_out: dict[str, str] = {}
    for _ in _files_below(root, left_out):
        pass
    return sorted(left_out.items())


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder on its path, is hidden: trash, or the state of a program."""
    return any(part.startswith(".") for part in name.split("/"))


def _files_below(root: Path, left_out: dict[str, str] | None = None) -> Iterator[str]:
    """The files of a folder and its subfolders. Subfolders that quintet wrote are added to `left_out` instead."""
    for folder, below, names in os.walk(root):
        if folder != str(root) and (kind := output_kind(folder, names)) is not None:
            below.clear()
            if left_out is not None:
                left_out[os.path.relpath(folder, root).replace(os.sep, "/")] = kind
            continue
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


ResultT = TypeVar("ResultT")
_HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
"""Errors of the S3 client that no retry can fix."""
_VERSIONS = ("ETag", "etag", "blob_id", "LastModified", "last_modified", "Last-Modified", "mtime", "created")
"""Names of the properties that change with the content, in different file systems."""


class Patience(NamedTuple):
    """Retry policy: the number of attempts, and the seconds before the second one; each pause is twice the last."""

    attempts: int = 6
    pause: float = 0.5


@dataclass
class RemoteStore:
    """The shards below a URL, or the single shard that it names."""

    url: str
    cache: Path
    """The folder of downloaded shards."""
    patience: Patience = field(default_factory=Patience)
    known: dict[str, ShardFile] = field(default_factory=dict)
    is_file: bool = False
    """Whether the URL names a single shard."""

    @property
    def label(self) -> str:
        return self.url

    def list_shards(self) -> list[ShardFile]:
        self.known = {each.name: each for each in self._retry("list", self.url, self._list_remote)}
        return [self.known[name] for name in chosen_shards(list(self.known))]

    def index(self) -> Path | None:
        return self.file(INDEX_NAME) if INDEX_NAME in self.known else None

    def marker(self) -> Path | None:
        if MARKER not in self.known or self.known[MARKER].size > LARGEST_MARKER:
            return None
        try:
            return self.file(MARKER)
        except UsageError:  # another program's file of that name, without permission to read it
            return None

    def file(self, name: str) -> Path:
        shard = self.known[name]
        key = self._key(shard)
        folder = self.cache / "shards" / key[:2]
        path = folder / f"{key}-{posixpath.basename(name)}"
        if _is_complete(path, shard.size):
            return path
        with exclusive_lock(folder / f"{key}.lock"):
            mark_output(self.cache / "shards")
            if not _is_complete(path, shard.size):
                address = self.url if self.is_file else f"{self.url.rstrip('/')}/{name}"
                self._retry("read", address, lambda: self._copy(shard, path))
        return path

    def _key(self, shard: ShardFile) -> str:
        # This text is the cache key of a copy, so it must never change, not even with the name of the class.
        identity = f"({self.url!r}, Found(name={shard.name!r}, size={shard.size!r}, version={shard.version!r}))"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    def copy_hash(self, name: str) -> str:
        try:
            return files.read_regular(_hash_file(self.file(name)), 64).decode("ascii", "replace")
        except OSError:  # a copy of an earlier version
            return ""

    def discard(self, name: str) -> bool:
        self.file(name).unlink(missing_ok=True)
        return True

    def _copy(self, shard: ShardFile, path: Path) -> None:
        system, root = self._system()
        remote = root if self.is_file else posixpath.join(root, shard.name)
        with writing_cache(self.cache), files.atomic_write(path) as temporary:
            system.get_file(remote, str(temporary))
            size = temporary.stat().st_size
            if size != shard.size:
                raise OSError(f"truncated: received {size} of {shard.size} bytes")
            with files.open_regular(temporary) as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
            files.replace_text(_hash_file(path), content)

    def _list_remote(self) -> list[ShardFile]:
        system, root = self._system()
        system.invalidate_cache()  # an earlier listing may be out of date
        name = posixpath.basename(root.partition("?")[0])  # without the query string
        if is_shard(name):  # it may also be a folder with such a name
            facts = _properties(system, root)
            self.is_file = facts.get("type") == "file"
            if self.is_file:
                return [self._shard_file(name, facts)]
        details = system.find(root, detail=True)
        if not details:
            raise FileNotFoundError(self.url)
        names = {posixpath.relpath(path, root): path for path in sorted(details)}
        chosen = {name: path for name, path in names.items() if name in (INDEX_NAME, MARKER) or is_shard(name)}
        # Listings of web servers have names only.
        return [
            self._shard_file(
                name, details[path] if details[path].get("size") is not None else _properties(system, path)
            )
            for name, path in chosen.items()
            if not is_hidden(name) and (name != MARKER or details[path].get("size") is not None)
        ]

    def _shard_file(self, name: str, facts: dict[str, Any]) -> ShardFile:
        if facts.get("size") is None:
            raise UsageError(f"{self.url} cannot be used: the server does not report the size of {name}")
        return ShardFile(name, int(facts["size"]), _version(facts))

    def _system(self) -> tuple[Any, str]:
        """The file system of this process and the path on it; connections do not survive a fork."""
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(self.url, **_options(self.url, fsspec.config.conf))
        except ImportError as error:
            raise UsageError(
                f"{self.url} needs a package that is not installed ({error}): pip install 'quintet[shards]'"
            ) from None
        except ValueError as error:
            raise UsageError(f"{self.url} is not a URL that can be read: {error}") from None
        if hasattr(system, "retries"):
            system.retries = 1  # s3fs would retry without a message
        return system, str(path).rstrip("/")

    def _retry(self, verb: str, what: str, request: Callable[[], ResultT]) -> ResultT:
        pause = self.patience.pause
        for attempt in range(1, self.patience.attempts + 1):
            try:
                return request()
            except (UsageError, RunError):
                raise
            except FileNotFoundError:
                raise UsageError(f"{what} does not exist or holds no shard") from None
            except PermissionError as error:
                raise UsageError(f"no permission to read {what}: {files.one_line(error)}") from None
            except Exception as error:  # each file system has its own errors
                problem = f"{type(error).__name__}: {files.one_line(error)}"
                if type(error).__name__ in _HOPELESS:
                    raise UsageError(f"no permission to read {what}: {problem}") from None
            if attempt < self.patience.attempts:
                again = f"attempt {attempt + 1} of {self.patience.attempts} in {pause:g} s"
                say(f"{what}: {problem}; {again}", any_rank=True)
                time.sleep(pause)
                pause *= 2
        raise RunError(
            f"cannot {verb} {what} after {self.patience.attempts} attempts ({problem}); run `quintet resume` once it "
            "can be reached"
        )


def _options(url: str, configured: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the clients, where the user has configured none.

    The S3 client would retry silently. The HTTP client would abort every download after five minutes; with these
    options it aborts after a minute without data.
    """
    if url.startswith(("s3://", "s3a://")) and "config_kwargs" not in configured.get("s3", {}):
        return {"config_kwargs": {"retries": {"max_attempts": 0}}}
    if url.startswith(("http://", "https://")) and not configured.keys() & {"http", "https"}:
        import aiohttp

        return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)}}
    return {}


def _properties(system: Any, path: str) -> dict[str, Any]:
    """The properties of a file. If a web server fails, fsspec raises `FileNotFoundError` from the real error."""
    try:
        return dict(system.info(path))
    except FileNotFoundError as error:
        cause = error.__cause__
        failed = isinstance(cause, TimeoutError) or type(cause).__module__.startswith("aiohttp")
        if cause is None or not failed or getattr(cause, "status", None) in (404, 410):
            raise
        raise cause from None


def _version(facts: dict[str, Any]) -> str:
    return next((str(facts[name]) for name in _VERSIONS if facts.get(name) is not None), "")


def _hash_file(path: Path) -> Path:
    """The file with the hash of a downloaded shard, beside it."""
    return path.with_name(f"{path.name}.sha256")


def _is_complete(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
