"""What people try to train MuLaN on: the command says what is wrong with the captions, and with a batch of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contract.cases import TINY_MULAN
from helpers import error_line, log_text, quintet, succeed
from quintet.media.audio import write_audio

CLIPS = 8


def clips(folder: Path, caption: Callable[[int], str | None]) -> Path:
    """Eight tones, each with its caption, if it has one."""
    rows = []
    for number in range(CLIPS):
        time = np.arange(6000) / 8000
        write_audio(0.5 * np.sin(2 * np.pi * (200 + 50 * number) * time), folder / f"{number}.wav", 8000)
        text = caption(number)
        rows.append({"file_name": f"{number}.wav", **({} if text is None else {"text": text})})
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def words(data: Path, out: Path, *more: str) -> tuple[object, ...]:
    short = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2", "data.validation_fraction=0.25")
    return ("train", "mulan", data, "--out", out, *TINY_MULAN, *short, *more)


def test_a_batch_of_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number}")
    refused = quintet(*words(data, tmp_path / "run", "train.batch_size=1"))
    assert refused.code == 2
    assert "at least 2 (got 1), because it compares the items of a batch with each other" in error_line(refused.errors)
    assert not (tmp_path / "run").exists()


def test_one_caption_for_all_is_warned_of(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: "a tone")
    said = succeed(*words(data, tmp_path / "run")).errors
    assert said.count("warning: all 8 clips have the caption 'a tone': there is nothing to tell them apart by") == 1


def test_long_captions_are_cut_and_said_once(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number} " + "that goes on " * 40)
    said = succeed(*words(data, tmp_path / "run")).errors
    assert (
        said.count("8 captions are longer than model.text.max_length=128 and are cut at their end, for one: 'tone") == 1
    )
    assert "Warning" not in said
    found = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(found["train"]) + len(found["validation"]) == CLIPS


def test_missing_captions_are_counted(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: None if number < 3 else f"tone {number}")
    refused = quintet(*words(data, tmp_path / "run"))
    assert refused.code == 2
    assert "3 of 8 clips have no caption" in error_line(refused.errors)
    succeed(*words(data, tmp_path / "run", "data.allow_missing_captions=true"))


@pytest.mark.parametrize("reads", ["tokens:nowhere", "hf:nowhere", "letters"])
def test_text_that_cannot_be_read_is_refused(reads: str, tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number}")
    refused = quintet(*words(data, tmp_path / "run", f"model.text.encoder={reads}"))
    assert refused.code == 2
    assert "nowhere" in error_line(refused.errors) or "choose bytes" in error_line(refused.errors)


def test_files_that_cannot_be_read_are_left_out_by_name(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number}")
    whole = (data / "3.wav").read_bytes()
    (data / "3.wav").write_bytes(whole[: len(whole) // 2])
    (data / "4.wav").write_bytes(b"")
    succeed(*words(data, tmp_path / "run", "train.steps=6", "data.validation_fraction=0"))
    skipped = json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]
    assert {"3.wav", "4.wav"} <= skipped.keys()
    assert "3.wav" in log_text(tmp_path / "run")
