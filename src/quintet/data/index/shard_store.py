"""Where shards lie, in a folder or behind an address (`s3://…`, `https://…`, whatever fsspec knows), and one of them
as a file on this machine.

A shard behind an address is copied whole when an item of it is first read, by one process while the others wait, and is
there from then on. A copy is known by the address, the size and the version that the other side tells. Whatever goes
wrong on the way is tried again, each time after twice as long, and said; at last it is an error that names the shard. A
copy that is shorter or longer than the shard is never used.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from quintet.common import files
from quintet.common.caches import only_writer
from quintet.common.logging import say
from quintet.data.index.marker import LARGEST_MARKER, MARKER
from quintet.data.index.shard_index import INDEX_NAME
from quintet.errors import RunError, UsageError
from quintet.media import audio as sounds
from quintet.media import image as images
from quintet.media import mesh as meshes
from quintet.media import video as films

MEDIA = images.EXTENSIONS | sounds.EXTENSIONS | meshes.EXTENSIONS | films.EXTENSIONS
TAR, PARQUET = ".tar", ".parquet"


class ShardFile(NamedTuple):
    """A shard as it lies there: its path below the root, its size, and when or as what it was last written."""

    name: str
    size: int
    version: str


class Store(Protocol):
    """A place of shards."""

    @property
    def shown(self) -> str:
        """What it is called in messages."""

    def found(self) -> list[ShardFile]:
        """Its shards, by name."""

    def index(self) -> Path | None:
        """The index that lies beside them, if there is one."""

    def marker(self) -> Path | None:
        """The marker of a synthetic data set beside them, if there is one."""

    def file(self, name: str) -> Path:
        """A shard as a file on this machine."""


@dataclass(frozen=True)
class FolderStore:
    """Shards in a folder of this machine; `only` one of its files where that was named."""

    root: Path
    only: str | None = None

    @property
    def shown(self) -> str:
        return str(self.root if self.only is None else self.root / self.only)

    def found(self) -> list[ShardFile]:
        names = [self.only] if self.only is not None else chosen_shards(_files_below(self.root))
        return [self._found(name) for name in names]

    def _found(self, name: str) -> ShardFile:
        try:
            facts = os.stat(self.root / name)
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


def chosen_shards(files: Iterable[str]) -> list[str]:
    """Of all files those that are shards. Parquet files beside tar files are tables about them."""
    names = [*files]
    for extension in (TAR, PARQUET):
        chosen = sorted(name for name in names if name.lower().endswith(extension))
        if chosen:
            return chosen
    return []


def is_shard(name: str) -> bool:
    return name.lower().endswith((TAR, PARQUET))


def is_address(root: str | os.PathLike[str]) -> bool:
    """Whether data lies behind an address, rather than in a folder of this machine."""
    return "://" in str(root)


def holds_shards(root: Path) -> bool:
    """Whether a place is to be read as shards: it has an index, or holds shards and nowhere a file of media.

    Nowhere, since classes lie in folders of their own: a backup beside those is not what is to be trained on.
    """
    if root.is_file():
        return is_shard(root.name)
    if (root / INDEX_NAME).is_file():
        return True
    found = False
    for name in _files_below(root):
        if os.path.splitext(name)[1].lower() in MEDIA:
            return False
        found = found or is_shard(name)
    return found


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder on the way to it, is hidden: what was thrown away, or is kept by a program."""
    return any(part.startswith(".") for part in name.split("/"))


def _files_below(root: Path) -> Iterator[str]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


ResultT = TypeVar("ResultT")
_HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
"""Errors of the client of S3 that no second attempt mends."""
_VERSIONS = ("ETag", "etag", "blob_id", "LastModified", "last_modified", "Last-Modified", "mtime", "created")
"""What file systems call what changes with the content."""


class Patience(NamedTuple):
    """How often something is tried, and how many seconds pass before the second time; each pause is twice the last."""

    attempts: int = 6
    pause: float = 0.5


@dataclass
class RemoteStore:
    """Shards below an address, or the one that it names."""

    url: str
    cache: Path
    """The folder of copies."""
    patience: Patience = field(default_factory=Patience)
    known: dict[str, ShardFile] = field(default_factory=dict)
    is_file: bool = False
    """Whether the address is that of a shard itself."""

    @property
    def shown(self) -> str:
        return self.url

    def found(self) -> list[ShardFile]:
        self.known = {each.name: each for each in self._tried("list", self.url, self._listed)}
        return [self.known[name] for name in chosen_shards(list(self.known))]

    def index(self) -> Path | None:
        return self.file(INDEX_NAME) if INDEX_NAME in self.known else None

    def marker(self) -> Path | None:
        if MARKER not in self.known or self.known[MARKER].size > LARGEST_MARKER:
            return None
        try:
            return self.file(MARKER)
        except UsageError:  # somebody else's file of that name, which may not be read
            return None

    def file(self, name: str) -> Path:
        shard = self.known[name]
        # This text is the cache key of a copy, so it must never change, not even with the name of the class.
        identity = f"({self.url!r}, Found(name={shard.name!r}, size={shard.size!r}, version={shard.version!r}))"
        key = hashlib.sha256(identity.encode()).hexdigest()[:32]
        folder = self.cache / "shards" / key[:2]
        path = folder / f"{key}-{posixpath.basename(name)}"
        if _is_whole(path, shard.size):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with only_writer(folder / f"{key}.lock"):
            if not _is_whole(path, shard.size):
                address = self.url if self.is_file else f"{self.url.rstrip('/')}/{name}"
                self._tried("read", address, lambda: self._copy(shard, path))
        return path

    def _copy(self, shard: ShardFile, path: Path) -> None:
        system, root = self._system()
        remote = root if self.is_file else posixpath.join(root, shard.name)
        with files.atomic_write(path) as temporary:
            system.get_file(remote, str(temporary))
            size = temporary.stat().st_size
            if size != shard.size:
                raise OSError(f"cut off: {size} of {shard.size} bytes came")

    def _listed(self) -> list[ShardFile]:
        system, root = self._system()
        system.invalidate_cache()  # what was there a moment ago may be gone
        name = posixpath.basename(root.partition("?")[0])  # what a server is told beside the name stands after it
        if is_shard(name):  # or a folder that is called so
            facts = _facts(system, root)
            self.is_file = facts.get("type") == "file"
            if self.is_file:
                return [self._found(name, facts)]
        details = system.find(root, detail=True)
        if not details:
            raise FileNotFoundError(self.url)
        names = {posixpath.relpath(path, root): path for path in sorted(details)}
        chosen = {name: path for name, path in names.items() if name in (INDEX_NAME, MARKER) or is_shard(name)}
        # Listings of web servers are mere names.
        return [
            self._found(name, details[path] if details[path].get("size") is not None else _facts(system, path))
            for name, path in chosen.items()
            if not is_hidden(name) and (name != MARKER or details[path].get("size") is not None)
        ]

    def _found(self, name: str, facts: dict[str, Any]) -> ShardFile:
        if facts.get("size") is None:
            raise UsageError(f"{self.url} cannot be used: the server does not tell the size of {name}")
        return ShardFile(name, int(facts["size"]), _version(facts))

    def _system(self) -> tuple[Any, str]:
        """The file system of this process, and the path on it: its connections do not live on in a forked one."""
        import fsspec

        try:
            system, path = fsspec.core.url_to_fs(self.url, **_options(self.url, fsspec.config.conf))
        except ImportError as error:
            raise UsageError(
                f"{self.url} needs a package that is not installed ({error}): pip install 'quintet[shards]'"
            ) from None
        except ValueError as error:
            raise UsageError(f"{self.url} is no address that can be read: {error}") from None
        if hasattr(system, "retries"):
            system.retries = 1  # those of s3fs, which nobody would hear of
        return system, str(path).rstrip("/")

    def _tried(self, verb: str, what: str, act: Callable[[], ResultT]) -> ResultT:
        pause = self.patience.pause
        for attempt in range(1, self.patience.attempts + 1):
            try:
                return act()
            except UsageError:
                raise
            except FileNotFoundError:
                raise UsageError(f"{what} does not exist, or holds no shard") from None
            except PermissionError as error:
                raise UsageError(f"{what} may not be read: {files.one_line(error)}") from None
            except Exception as error:  # each file system has errors of its own
                problem = f"{type(error).__name__}: {files.one_line(error)}"
                if type(error).__name__ in _HOPELESS:
                    raise UsageError(f"{what} may not be read: {problem}") from None
            if attempt < self.patience.attempts:
                again = f"attempt {attempt + 1} of {self.patience.attempts} in {pause:g} s"
                say(f"{what}: {problem}; {again}", any_rank=True)
                time.sleep(pause)
                pause *= 2
        raise RunError(
            f"cannot {verb} {what} in {self.patience.attempts} attempts ({problem}); `quintet resume` goes on once it "
            "can be reached"
        )


def _options(url: str, configured: Mapping[str, Any]) -> dict[str, Any]:
    """What clients are told; a person's own settings stand.

    That of S3 would try again by itself, unheard. That of web servers would end a copy after five minutes, however well
    it went on; now it ends when a minute brought nothing.
    """
    if url.startswith(("s3://", "s3a://")) and "config_kwargs" not in configured.get("s3", {}):
        return {"config_kwargs": {"retries": {"max_attempts": 0}}}
    if url.startswith(("http://", "https://")) and not configured.keys() & {"http", "https"}:
        import aiohttp

        return {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)}}
    return {}


def _facts(system: Any, path: str) -> dict[str, Any]:
    """What is known of a file. Where a web server fails to tell, fsspec says that there is none; the cause says why."""
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


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
