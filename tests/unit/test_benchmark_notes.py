"""How benchmarks make more of a few notes: what is added is true, and touches no note that is never heard."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from quintet.media.audio import read_audio, write_audio

RATE = 16_000


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in ("notes_data", "pitch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("notes_data")


@pytest.mark.parametrize(
    ("caption", "shift", "wanted"),
    [
        ("banjo, note C5", -1, "banjo, note B4"),
        ("cello, note C sharp 3", -1, "cello, note C3"),
        ("flute 2, note D sharp 2", 3, "flute 2, note F sharp 2"),
        ("pad, note B flat 3", 2, "pad, note C4"),
        ("snr 1-1, standard 1 percussion kit", 3, "snr 1-1, standard 1 percussion kit"),
    ],
)
def test_a_caption_goes_with_its_note(notes: ModuleType, caption: str, shift: int, wanted: str) -> None:
    assert notes.transposed(caption, shift) == wanted


def folder_of(place: Path, rows: list[dict[str, str]]) -> Path:
    time = np.arange(RATE // 2) / RATE
    place.mkdir()
    for row in rows:
        write_audio(0.5 * np.sin(2 * np.pi * 440 * time), place / row["file_name"], RATE)
    (place / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return place


def test_training_notes_are_added_at_every_other_pitch_class(notes: ModuleType, tmp_path: Path) -> None:
    heard = {"file_name": "a.flac", "text": "tone, note A4", "split": "train"}
    unheard = {"file_name": "b.flac", "text": "tone, note A4", "split": "validation"}
    data = folder_of(tmp_path / "notes", [heard, unheard])
    notes.add_transposed(data)
    rows = notes.read_rows(data)
    assert [row for row in rows if row["split"] == "validation"] == [unheard]
    pitch = sys.modules["pitch"]
    found = [pitch.pitch_class(read_audio(data / row["file_name"], RATE)[0], RATE) for row in rows[2:]]
    assert found == [pitch.captioned_class(row["text"]) for row in rows[2:]]
    assert sorted([9, *found]) == list(range(12))


def test_beside_the_notes_stand_as_many_training_clips_of_another_folder(notes: ModuleType, tmp_path: Path) -> None:
    rows = [{"file_name": f"{name}.flac", "text": name, "split": "train"} for name in "ab"]
    own = folder_of(tmp_path / "notes", [*rows, {"file_name": "c.flac", "text": "c", "split": "validation"}])
    others = [{"file_name": f"{number}.wav", "text": "x", "split": "train"} for number in range(5)]
    sounds = folder_of(tmp_path / "sounds", [*others, {"file_name": "v.wav", "text": "x", "split": "validation"}])
    notes.with_other_clips(own, sounds, tmp_path / "both")
    both = notes.read_rows(tmp_path / "both")
    assert [row["split"] for row in both] == ["train", "train", "validation", "train", "train"]
    assert all((tmp_path / "both" / row["file_name"]).exists() for row in both)
    assert {row["text"] for row in both[3:]} == {"x"}
