"""Owns shards behind an address (`s3://…`, `https://…`, whatever fsspec knows): listing them, and copies in the cache.

A shard is copied whole when an item of it is first read, by one process while the others wait, and is there from then
on. A copy is known by the address, the size and the version that the other side tells. Whatever goes wrong on the way
is tried again, each time after twice as long, and said; at last it is an error that names the shard. A copy that is
shorter or longer than the shard is never used.
"""

from __future__ import annotations

import hashlib
import posixpath
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from quintet.common import files
from quintet.common.caches import only_writer
from quintet.common.logging import say
from quintet.data.index.marker import MARKER
from quintet.data.index.shard_index import INDEX_NAME
from quintet.data.index.shard_store import Found, chosen_shards, is_hidden, is_shard
from quintet.errors import RunError, UsageError

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
    known: dict[str, Found] = field(default_factory=dict)
    is_file: bool = False
    """Whether the address is that of a shard itself."""

    @property
    def shown(self) -> str:
        return self.url

    def found(self) -> list[Found]:
        self.known = {each.name: each for each in self._tried("list", self.url, self._listed)}
        return [self.known[name] for name in chosen_shards(list(self.known))]

    def index(self) -> Path | None:
        return self.file(INDEX_NAME) if INDEX_NAME in self.known else None

    def marker(self) -> Path | None:
        return self.file(MARKER) if MARKER in self.known else None

    def file(self, name: str) -> Path:
        shard = self.known[name]
        key = hashlib.sha256(repr((self.url, shard)).encode()).hexdigest()[:32]
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

    def _copy(self, shard: Found, path: Path) -> None:
        system, root = self._system()
        remote = root if self.is_file else posixpath.join(root, shard.name)
        with files.atomic_write(path) as temporary:
            system.get_file(remote, str(temporary))
            size = temporary.stat().st_size
            if size != shard.size:
                raise OSError(f"cut off: {size} of {shard.size} bytes came")

    def _listed(self) -> list[Found]:
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
            if not is_hidden(name)
        ]

    def _found(self, name: str, facts: dict[str, Any]) -> Found:
        if facts.get("size") is None:
            raise UsageError(f"{self.url} cannot be used: the server does not tell the size of {name}")
        return Found(name, int(facts["size"]), _version(facts))

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
