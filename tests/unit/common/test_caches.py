"""A cache folder that cannot be used ends in one sentence with the folder and what to set."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import NoReturn

import pytest

from contract.cases import TINY_MUSE
from helpers import error_line, quintet, succeed
from quintet.common import caches
from quintet.errors import RunError


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(RunError, match=r"no home folder for caches; set the environment variable XDG_CACHE_HOME"):
        caches.default_folder()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_folder_is_named(number: int, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught, caches.writing_cache(tmp_path):
        raise OSError(number, os.strerror(number))  # a write to an open file names no file
    assert f"cannot write to the cache folder {tmp_path} ({os.strerror(number)})" in str(caught.value)
    assert "set data.cache_dir, or the environment variable XDG_CACHE_HOME" in str(caught.value)


def test_errors_of_a_download_into_the_cache_pass(tmp_path: Path) -> None:
    for error in (ConnectionResetError(errno.ECONNRESET, "reset"), PermissionError("Forbidden"), OSError("truncated")):
        with pytest.raises(type(error)) as caught, caches.writing_cache(tmp_path):
            raise error
        assert caught.value is error


def test_a_folder_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(RunError, match=rf"cache folder {tmp_path}.*set data\.cache_dir"),
        caches.exclusive_lock(tmp_path / "lock"),
    ):
        pass


def test_commands_name_a_cache_folder_that_cannot_be_made(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shards = tmp_path / "shards"
    succeed("data", "shard", pictures, shards)
    (shards / "index.safetensors").unlink()
    for data in (pictures, shards):
        cache = tmp_path / "file" / "cache"
        outcome = quintet("train", "muse", data, "--out", tmp_path / "run", *TINY_MUSE, f"data.cache_dir={cache}")
        assert outcome.code == 1
        assert f"cannot write to the cache folder {cache}" in error_line(outcome.errors)
        assert "data.cache_dir" in error_line(outcome.errors)
