"""`data make` and `data shard`, killed at any point, leave no folder that could be trained on."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.moments import before_calls
from helpers import TINY, error_line, forked, quintet, succeed, tree

pytestmark = pytest.mark.fault("interrupted-make")

MAKE = ("data", "make", "shapes", "data", "--num", 12, "--size", 32)
POINTS = {
    "after some items": ("quintet.synthetic.shapes:split_of", 5),
    "after all items": ("quintet.synthetic.folders:write_marker", 1),
    "before the name": ("os:rename", 1),
}


@dataclass(frozen=True)
class KilledAt:
    """A `prepare` of `helpers.forked`: kill -9 just before the n-th call of a function."""

    function: str
    call: int

    def __call__(self) -> None:
        called = 0

        def die(*arguments: object) -> None:
            nonlocal called
            called += 1
            if called == self.call:
                os.kill(os.getpid(), signal.SIGKILL)

        before_calls(self.function, die)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def killed(words: tuple[object, ...], function: str, call: int) -> None:
    with forked(words, Path("said"), KilledAt(function, call)) as process:
        assert process.end() == -signal.SIGKILL, process.seen


def refused() -> str:
    outcome = quintet("train", "vqgan", "data", *TINY, "--out", "run")
    assert outcome.code == 2
    assert not Path("run").exists()
    return error_line(outcome.errors)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_make_leaves_no_folder(here: Path, point: str) -> None:
    killed(MAKE, *POINTS[point])
    assert refused() == f"error: folder {here / 'data'} does not exist; name a folder with your files"
    outcome = quintet("data", "check", here)
    assert (outcome.code, "0 image files found" in outcome.output) == (1, True)
    succeed(*MAKE)
    assert sorted(path.name for path in here.iterdir()) == ["data", "said"]


@pytest.mark.parametrize("point", [*POINTS.values(), ("os:rename", 2), ("os:rename", 3)])
def test_a_killed_make_leaves_no_data_in_a_folder_that_exists(here: Path, point: tuple[str, int]) -> None:
    Path("data").mkdir()
    killed(MAKE, *point)
    assert "no usable file" in refused()
    outcome = quintet(*MAKE)
    if point[1] in (2, 3):  # some of its files have their names, and the user has to decide
        assert "data is not empty; choose a new folder" in error_line(outcome.errors)
    else:
        assert outcome.code == 0, outcome.errors
        assert {path.name for path in Path("data").iterdir()} == {"images", "dataset.json", "metadata.jsonl"}


def test_the_current_folder_can_be_filled(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    succeed(*MAKE)
    Path("own").mkdir()
    monkeypatch.chdir("own")
    succeed(*("." if word == "data" and number == 3 else word for number, word in enumerate(MAKE)))
    assert tree(here / "own") == tree(here / "data")


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("quintet.data.index.shard_writer:ShardWriter.add", 5),
        ("quintet.data.index.shard_writer:ShardWriter.close", 1),
        ("os:rename", 1),
    ],
)
def test_killed_sharding_leaves_no_folder(here: Path, pictures: Path, function: str, call: int) -> None:
    words = ("data", "shard", pictures, "data", "--items", 4)
    killed(words, function, call)
    assert "does not exist" in refused()
    succeed(*words)
    assert sorted(path.name for path in here.iterdir()) == ["data", "said"]


@pytest.mark.parametrize("name", ["shapes", "solids", "sounds", "motions"])
def test_every_dataset_is_complete_or_missing(here: Path, name: str) -> None:
    killed(("data", "make", name, "data", "--num", 2), "quintet.synthetic.folders:write_marker", 1)
    assert not Path("data").exists()
