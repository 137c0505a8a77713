"""Files are written at once: a reader sees the old or the new one, and a failure leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintet.common import files
from quintet.errors import UsageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("concurrent", [False, True])
def test_the_file_exists_only_at_the_end_of_the_block(tmp_path: Path, concurrent: bool) -> None:
    path = tmp_path / "a.txt"
    with files.atomic_write(path, concurrent=concurrent) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert not path.exists()
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_a_failure_keeps_the_old_file_and_removes_the_new_one(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with files.atomic_write(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_leftovers_of_a_killed_process_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.writing").write_text("a long text that was never finished")
    files.replace_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


def test_concurrent_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with files.atomic_write(path, concurrent=True) as one, files.atomic_write(path, concurrent=True) as two:
        assert one != two
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"
    assert names(tmp_path) == ["a.txt"]


def test_a_link_at_the_temporary_path_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / ".a.txt.writing").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        files.replace_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "secret").read_text() == "kept"


def test_only_non_empty_folders_are_refused(tmp_path: Path) -> None:
    files.refuse_existing(tmp_path / "new")
    files.refuse_existing(tmp_path)
    with pytest.raises(UsageError, match="exists already; choose another file"):
        files.refuse_existing(tmp_path, "choose another file", folder=False)
    (tmp_path / "a.txt").touch()
    for used in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(UsageError, match="exists already and is not empty; choose another folder with --out"):
            files.refuse_existing(used)
