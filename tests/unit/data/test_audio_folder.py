"""Audio folders: windows of the files as items, and batches of them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from quintet.common.rng import ItemRNG
from quintet.config import WindowedAudioDataConfig
from quintet.data.audio import AudioFolder, audio_folder_splits, mean_over_windows, pad_windows, report_resampling
from quintet.data.check import check_folder
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem

RATE = 8000


def rng(item: int = 0, epoch: int = 0) -> ItemRNG:
    return ItemRNG(0, [epoch], [item])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A short, a middling and a long file (0.5, 2, 20 s) whose samples are their positions, and one without audio."""
    for name, seconds in {"a": 0.5, "b": 2.0, "c": 20.0}.items():
        count = int(seconds * RATE)
        soundfile.write(tmp_path / f"{name}.wav", np.arange(count) / 200_000, RATE, subtype="FLOAT")
    (tmp_path / "d.wav").write_text("not audio")
    rows = [
        {"file_name": "a.wav", "text": "short", "split": "train"},
        {"file_name": "b.wav", "text": "middling", "split": "train"},
        {"file_name": "c.wav", "text": "long", "split": "train"},
        {"file_name": "d.wav", "text": "none", "split": "validation"},
    ]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def splits(folder: Path, rate: int = RATE, **keys: Any) -> Splits:
    return audio_folder_splits(WindowedAudioDataConfig(path=str(folder), seconds=1.0, **keys), rate)


def without_training(folder: Path, **keys: Any) -> AudioFolder:
    train = splits(folder).train
    assert isinstance(train, AudioFolder)
    return AudioFolder(folder, train.entries, RATE, 1.0, train=False, **keys)


def start_of(wave: torch.Tensor) -> int:
    return round(wave[0].item() * 200_000)


def test_items_hold_windows_lengths_and_texts(folder: Path) -> None:
    train = splits(folder).train
    items = [train.load(item, rng(item)) for item in range(3)]
    assert [item["wavs"].shape for item in items] == [(1, 4000), (1, 8000), (1, 8000)]
    assert [item["lengths"].tolist() for item in items] == [[4000], [8000], [8000]]
    assert [item["texts"] for item in items] == ["short", "middling", "long"]
    assert all(item.keys() == {"texts", "wavs", "lengths"} for item in items)


def test_crops_are_random_by_item_and_epoch_and_stay_in_the_file(folder: Path) -> None:
    train = splits(folder).train
    starts = [start_of(train.load(2, rng(2, epoch))["wavs"][0]) for epoch in range(40)]
    again = [start_of(train.load(2, rng(2, epoch))["wavs"][0]) for epoch in range(40)]
    assert starts == again
    assert len(set(starts)) > 35
    assert min(starts) >= 0
    assert max(starts) <= 19 * RATE
    assert max(starts) - min(starts) > 10 * RATE
    window = train.load(2, rng(2))["wavs"][0]
    torch.testing.assert_close(window, (torch.arange(8000) + start_of(window)) / 200_000, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rate", [RATE, 16_000])
def test_caching_changes_no_sample(folder: Path, rate: int) -> None:
    cached, read = (splits(folder, rate, memory_megabytes=megabytes).train for megabytes in (64, 0))
    for epoch in range(3):
        for item in range(3):
            one, two = (source.load(item, rng(item, epoch))["wavs"] for source in (cached, read))
            assert torch.equal(one, two)
    assert isinstance(cached, AudioFolder)
    assert sorted(cached._cached) == [0, 1]  # the long one is read by windows
    pickle.loads(pickle.dumps(cached))


def test_a_long_clip_has_several_windows_outside_training(folder: Path) -> None:
    source = without_training(folder, stride=0.5, max_windows=10)
    items = [source.load(item, rng(item)) for item in range(3)]
    assert [len(item["wavs"]) for item in items] == [1, 3, 10]
    assert [start_of(wave) for wave in items[1]["wavs"]] == [0, 4000, 8000]
    starts = [start_of(wave) for wave in items[2]["wavs"]]
    assert (starts[0], starts[-1]) == (0, 19 * RATE)
    assert torch.equal(items[2]["wavs"], source.load(2, rng(2, 5))["wavs"])


def test_first_window_only_applies_in_training_and_outside(folder: Path) -> None:
    found = audio_folder_splits(WindowedAudioDataConfig(path=str(folder), seconds=1.0), RATE, first_window_only=True)
    assert isinstance(found.train, AudioFolder)
    for epoch in range(3):
        long = found.train.load(2, rng(2, epoch))["wavs"]
        assert long.shape == (1, RATE)
        assert start_of(long[0]) == 0
    assert found.train.load(0, rng())["wavs"].shape == (1, RATE // 2)
    assert replace(found.train, train=False).load(2, rng(2))["wavs"].shape == (1, RATE)


def test_preprocessing_key_covers_all_settings(folder: Path) -> None:
    plain = AudioFolder(folder, [], RATE, 1.0)
    others = [
        replace(plain, **change)
        for change in (
            {"rate": 16_000},
            {"seconds": 2.0},
            {"loudness": -20.0},
            {"first_window_only": True},
            {"train": False},
            {"train": False, "full_clip": True},
            {"train": False, "stride": 0.5},
            {"train": False, "max_windows": 2},
        )
    ]
    assert len({each.preprocessing_key for each in (plain, *others)}) == 9
    assert replace(plain, memory=5).preprocessing_key == plain.preprocessing_key


def test_files_of_another_rate_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = splits(folder, rate=16_000)
    report_resampling(found.train, 16_000, "the model")
    assert capsys.readouterr().err == "resampled to the 16000 Hz of the model: 3 of 8000 Hz, of the first 3 files\n"
    report_resampling(found.validation, 16_000, "the model")  # one file, without audio
    report_resampling(found.train, RATE, "the model")
    assert capsys.readouterr().err == ""


def test_batches_are_padded_and_masked_never_truncated(folder: Path) -> None:
    source = without_training(folder, stride=0.5)
    items = [source.load(item, rng(item)) for item in (0, 1)]
    batch = pad_windows(items)
    assert batch["wavs"].shape == batch["mask"].shape == (4, 8000)
    assert batch["lengths"].tolist() == [4000, 8000, 8000, 8000] == batch["mask"].sum(dim=1).tolist()
    assert batch["owners"].tolist() == [0, 1, 1, 1]
    assert batch["texts"] == ["short", "middling"]
    assert torch.equal(batch["wavs"][0, :4000], items[0]["wavs"][0])
    assert not batch["wavs"][~batch["mask"]].any()
    means = mean_over_windows(torch.tensor([[1.0], [1.0], [2.0], [6.0]]), batch["owners"], 2)
    assert means.tolist() == [[1.0], [3.0]]


def test_windows_are_normalised_to_a_loudness(folder: Path) -> None:
    time = np.arange(2 * RATE) / RATE
    soundfile.write(folder / "b.wav", 0.02 * np.sin(2 * np.pi * 997 * time), RATE)
    wave = splits(folder, loudness=-20).train.load(1, rng(1))["wavs"]
    assert wave.abs().max().item() == pytest.approx(10 ** (-16.99 / 20), rel=0.03)


def test_an_unreadable_file_has_a_reason(folder: Path) -> None:
    with pytest.raises(UnreadableItem, match="no decoder"):
        splits(folder).validation.load(0, rng())
    train = splits(folder).train
    train.load(0, rng())
    soundfile.write(folder / "a.wav", np.zeros(100), RATE)
    with pytest.raises(UnreadableItem, match="changed since"):
        train.load(0, rng())


def test_the_check_of_audio(folder: Path) -> None:
    soundfile.write(folder / "silent.flac", np.zeros((4000, 2)), 16_000)
    soundfile.write(folder / "clipped.wav", np.clip(np.sin(np.arange(8000) / 9) * 3, -1, 1), RATE)
    report = check_folder(folder)
    assert (report.medium, report.found, report.usable) == ("audio", 6, 5)
    assert (report.numbers["seconds"].min, report.numbers["seconds"].max) == (0.25, 20.0)
    assert report.words["rate"] == {"8000 Hz": 4, "16000 Hz": 1}
    assert report.words["channels"] == {"mono": 4, "stereo": 1}
    assert report.words["level"] == {"normal": 3, "clipped": 1, "silent": 1}
    assert [file for file, _ in report.skipped] == ["d.wav"]
    assert "1 files are silent and are still used: silent.flac" in report.notes
    assert "1 files are clipped and are still used: clipped.wav" in report.notes
