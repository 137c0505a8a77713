"""Bad inputs of MuLaN: the command names what is wrong with the captions, the files, or a batch of one."""

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


def command(data: Path, out: Path, *more: str) -> tuple[object, ...]:
    short = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2", "data.validation_fraction=0.25")
    return ("train", "mulan", data, "--out", out, *TINY_MULAN, *short, *more)


def test_a_batch_of_one_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number}")
    outcome = quintet(*command(data, tmp_path / "run", "train.batch_size=1"))
    assert outcome.code == 2
    assert "at least 2 (got 1), because it compares the items of a batch with each other" in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def test_equal_captions_are_warned_about(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: "a tone")
    output = succeed(*command(data, tmp_path / "run")).errors
    assert (
        output.count("warning: all 8 clips have the same caption 'a tone': a contrastive loss cannot learn from it")
        == 1
    )


def test_long_captions_are_truncated_with_one_message(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number} " + "that goes on " * 40)
    output = succeed(*command(data, tmp_path / "run")).errors
    assert (
        output.count("8 captions are longer than model.text.max_length=128 and are truncated, for example 'tone") == 1
    )
    assert "Warning" not in output
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(record["train"]) + len(record["validation"]) == CLIPS


def test_captions_and_texts_of_any_script_and_length_are_used_and_empty_ones_refused(tmp_path: Path) -> None:
    scripts = ("長笛", "ドラム", "скрипка", "🎻", "עוגב", "กลอง", "flûte", "a flute")
    data = clips(tmp_path / "data", lambda number: scripts[number])
    run = tmp_path / "run"
    succeed(*command(data, run))
    said = succeed("search", run, data, "--text", "скрипка", "--top", "3").errors
    assert "truncated" not in said
    said = succeed("search", run, data, "--text", "長笛" * 60).errors
    assert said.count("warning: text truncated to model.text.max_length=128: '長笛") == 1
    for words in (("search", run, data), ("embed", run, "--out", tmp_path / "vectors.npz")):
        for text in ("", "  "):
            outcome = quintet(*words, "--text", text)
            assert outcome.code == 2
            assert error_line(outcome.errors) == "error: --text is empty; describe what to search for"
    assert not (tmp_path / "vectors.npz").exists()


def test_missing_captions_are_counted(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: None if number < 3 else f"tone {number}")
    outcome = quintet(*command(data, tmp_path / "run"))
    assert outcome.code == 2
    assert "3 of 8 clips have no caption" in error_line(outcome.errors)
    succeed(*command(data, tmp_path / "run", "data.allow_missing_captions=true"))


@pytest.mark.parametrize("encoder", ["tokens:nowhere", "hf:nowhere", "letters"])
def test_an_invalid_text_encoder_is_refused(encoder: str, tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number}")
    outcome = quintet(*command(data, tmp_path / "run", f"model.text.encoder={encoder}"))
    assert outcome.code == 2
    assert "nowhere" in error_line(outcome.errors) or "choose bytes" in error_line(outcome.errors)


def test_unreadable_files_are_skipped_and_named(tmp_path: Path) -> None:
    data = clips(tmp_path / "data", lambda number: f"tone {number}")
    content = (data / "3.wav").read_bytes()
    (data / "3.wav").write_bytes(content[: len(content) // 2])
    (data / "4.wav").write_bytes(b"")
    succeed(*command(data, tmp_path / "run", "train.steps=6", "data.validation_fraction=0"))
    skipped = json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]
    assert {"3.wav", "4.wav"} <= skipped.keys()
    assert "3.wav" in log_text(tmp_path / "run")
