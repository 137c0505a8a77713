"""Names that a user or somebody else chose never control the terminal: they are printed with escapes."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from helpers import TINY, copied, error_line, quintet, succeed
from quintet.cli.shared import print_line
from quintet.common.logging import say
from quintet.training.display import Display

CLEAR = "\x1b[2J"
"""Clears the screen of a terminal."""
HALF = os.fsdecode(b"\xff")
"""A byte that is not UTF-8, as Python holds it in a path: it cannot be printed."""


def is_harmless(text: str) -> bool:
    text.encode("utf-8")
    return all(character.isprintable() or character in "\n\t" for character in text)


@pytest.fixture
def hostile(pictures: Path, tmp_path: Path) -> Path:
    """A data folder whose own name, subfolder, files and captions hold control characters."""
    folder = tmp_path / f"data{CLEAR}\nerror: all is lost"
    (folder / f"sub{CLEAR}").mkdir(parents=True)
    for number, path in enumerate(sorted((pictures / "images").iterdir())[:8]):
        shutil.copy(path, folder / f"good-{number}.png")
        (folder / f"good-{number}.txt").write_text(f"a cat {CLEAR}", encoding="utf-8")
    (folder / "empty.png").touch()
    (folder / "broken.png").write_bytes(CLEAR.encode() * 20)
    (folder / f"sub{CLEAR}" / "c.png").write_bytes(b"x")
    (folder / f"n\newline{HALF}.png").write_bytes(b"x")
    return folder


def test_no_command_prints_control_characters_of_names(hostile: Path, tmp_path: Path) -> None:
    run = tmp_path / f"run{CLEAR}"
    for words in (
        ("data", "check", hostile),
        ("data", "check", hostile, "--json"),
        ("train", "vqgan", hostile, "--out", run, *TINY),
        ("resume", run, "train.steps=16"),
        ("eval", run),
        ("sample", run, "--num", 2, "--out", tmp_path / f"out{CLEAR}"),
        ("encode", run, hostile, "--out", tmp_path / f"codes{CLEAR}"),
        ("export", run, tmp_path / f"hub{CLEAR}"),
        ("data", "shard", hostile, tmp_path / f"shards{CLEAR}"),
        ("data", "make", "shapes", tmp_path / f"made{CLEAR}", "--num", 2),
    ):
        outcome = succeed(*words)
        assert is_harmless(outcome.output), words
        assert is_harmless(outcome.errors), words
    assert is_harmless((run / "log.txt").read_text(encoding="utf-8"))


def test_an_error_is_one_line_without_control_characters(tmp_path: Path) -> None:
    missing = tmp_path / f"no{CLEAR}\nerror: all is lost {HALF}"
    for words in (
        ("train", "vqgan", missing),
        ("data", "check", missing),
        ("eval", missing),
        ("encode", missing, missing),
        ("resume", missing),
        ("search", missing, missing, "--text", "x"),
    ):
        outcome = quintet(*words)
        assert outcome.code in (1, 2)
        assert is_harmless(error_line(outcome.errors))
        assert len(outcome.errors.splitlines()) == 1


def test_paths_that_are_not_utf8_are_refused(pictures: Path, trained: Path, tmp_path: Path) -> None:
    """A run could be written to such a path, but not be read again."""
    folder, out = copied(pictures, tmp_path / f"data{HALF}"), tmp_path / f"out{HALF}"
    for words in (
        ("train", "vqgan", folder, "--out", tmp_path / "run", *TINY),
        ("train", "vqgan", pictures, "--out", out, *TINY),
        ("export", trained, out),
        ("encode", trained, pictures, "--out", out),
    ):
        refused = quintet(*words)
        assert refused.code == 2
        assert "is not UTF-8" in error_line(refused.errors)
    assert not out.exists()
    assert is_harmless(succeed("data", "check", folder).output)


def test_only_captions_and_empty_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", f"b{CLEAR}", "c\nd"):
        (tmp_path / "data" / f"{name}.png").touch()
        (tmp_path / "data" / f"{name}.txt").write_text("a cat")
    outcome = quintet("train", "vqgan", tmp_path / "data", "--out", tmp_path / "run", *TINY)
    assert outcome.code == 2
    assert is_harmless(outcome.errors)
    assert "5 skipped, the first a.png (empty file)" in error_line(outcome.errors)


def test_every_way_to_the_terminal_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for write, stream in ((say, "stderr"), (print_line, "stdout"), (Display("run").note, "stderr")):
        seen = io.StringIO()
        monkeypatch.setattr(sys, stream, seen)
        write(f"name{CLEAR}\x9b\r{HALF}\nnext line")
        assert seen.getvalue() == "name\\x1b[2J\\x9b\\r\\udcff\nnext line\n"
