"""Audio files of all kinds: unusable files are named by the command, unusual ones are used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from helpers import quintet, succeed
from quintet.common.rng import ItemRNG
from quintet.config import WindowedAudioDataConfig
from quintet.data.audio import AudioFolder, audio_folder_splits
from quintet.errors import UnreadableItem
from quintet.media.audio import Samples

FORMATS = ("wav", "flac", "mp3", "ogg")
RATE = 16_000
"""Sampling rate of the model; windows have one second."""
NUM_GOOD = 8


# --- files of all kinds -------------------------------------------------------------------------------------------


def tone(seconds: float, rate: int = RATE, channels: int = 1) -> Samples:
    time = np.arange(int(seconds * rate)) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * (220 + 30 * each) * time) for each in range(channels)]).astype(np.float32)


def write(path: Path, samples: Samples, rate: int = RATE, subtype: str | None = None) -> None:
    with soundfile.SoundFile(path, "w", rate, len(samples), subtype) as file:
        for start in range(0, samples.shape[1], 8192):  # libsndfile cannot take much Vorbis at once
            file.write(samples[:, start : start + 8192].T)


def add_unusable(folder: Path) -> dict[str, str]:
    """Files that no training can use, and the expected reason of each."""
    reasons = {}
    for extension in FORMATS:
        (folder / f"empty.{extension}").touch()
        reasons[f"empty.{extension}"] = "empty file"
        (folder / f"words.{extension}").write_text("this is not audio\n" * 20)
        Image.new("RGB", (40, 40), (200, 10, 10)).save(folder / f"image.{extension}", format="PNG")
        reasons |= {f"{name}.{extension}": "not a sound file" for name in ("words", "image")}
        cut = folder / f"cut.{extension}"
        write(cut, tone(6))
        cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        reasons[cut.name] = "truncated"
    for extension in ("wav", "ogg"):
        write(folder / f"zero.{extension}", tone(0))
        reasons[f"zero.{extension}"] = "its length is zero"
    broken = tone(1)
    broken[0, 700] = np.nan
    write(folder / "nan.wav", broken, subtype="FLOAT")
    reasons["nan.wav"] = "samples that are no numbers"
    write(folder / "unscaled.wav", 30_000 * tone(1), subtype="FLOAT")
    reasons["unscaled.wav"] = "where 1 is full scale"
    return reasons


def add_unusual(folder: Path) -> dict[str, int]:
    """Unusual files that are used, and the number of samples in a window of each."""
    lengths = {}
    for extension in FORMATS:
        write(folder / f"silent.{extension}", np.zeros((1, 2 * RATE), np.float32))
        write(folder / f"clipped.{extension}", np.clip(5 * tone(2), -1, 1))
        write(folder / f"slow.{extension}", tone(2, 8000), 8000)
        write(folder / f"brief.{extension}", tone(0.1))
        lengths |= {f"{name}.{extension}": RATE for name in ("silent", "clipped", "slow")}
        lengths[f"brief.{extension}"] = 1600
    for extension in ("wav", "flac", "ogg"):
        write(folder / f"fast.{extension}", tone(2, 192_000), 192_000)
        write(folder / f"eight.{extension}", tone(2, channels=8))
        lengths |= {f"{name}.{extension}": RATE for name in ("fast", "eight")}
    write(folder / "one-sample.wav", tone(1)[:, 1:2])
    lengths["one-sample.wav"] = 1
    for content, name in (("wav", "mp3"), ("mp3", "flac"), ("flac", "ogg"), ("ogg", "wav")):
        shutil.copy(folder / f"clipped.{content}", folder / f"{content}-called.{name}")
        lengths[f"{content}-called.{name}"] = RATE
    return lengths


@pytest.fixture
def folder(sounds: Path, tmp_path: Path) -> Path:
    """A few good audio files without captions, to which tests add others."""
    target = tmp_path / "data"
    target.mkdir()
    for path in sorted((sounds / "sounds").iterdir())[:NUM_GOOD]:
        shutil.copy(path, target / f"a-{path.name}")
    return target


def source_of(folder: Path) -> AudioFolder:
    train = audio_folder_splits(
        WindowedAudioDataConfig(path=str(folder), seconds=1.0, validation_fraction=0.0), RATE
    ).train
    assert isinstance(train, AudioFolder)
    return train


# --- the check and the training -----------------------------------------------------------------------------------


def test_unusable_files_are_named_and_unusual_ones_are_used(folder: Path) -> None:
    unusable, unusual = add_unusable(folder), add_unusual(folder)

    checked = json.loads(succeed("data", "check", folder, "--json").output)

    skipped = {each["file"]: each["reason"] for each in checked["skipped"]}
    assert skipped.keys() == unusable.keys()
    for name, part in unusable.items():
        assert part in skipped[name], name
        assert "\n" not in skipped[name]
    assert (checked["medium"], checked["usable"]) == ("audio", NUM_GOOD + len(unusual))


def test_the_check_reports_rates_channels_silence_and_clipping(folder: Path) -> None:
    add_unusual(folder)

    outcome = succeed("data", "check", folder)

    assert "8000 Hz 4, 192000 Hz 3" in outcome.output
    assert "mono 32, 8 channels 3" in outcome.output
    assert "4 files are silent and are still used: silent.flac, silent.mp3, silent.ogg …" in outcome.output
    assert "8 files are clipped and are still used: clipped.flac, clipped.mp3, clipped.ogg …" in outcome.output
    assert f"next: quintet train audio-codec {folder}" in outcome.errors + outcome.output


def test_training_and_the_check_agree_on_usable_files(folder: Path) -> None:
    unusable, unusual = add_unusable(folder), add_unusual(folder)
    source = source_of(folder)

    lengths, reasons = {}, {}
    for item in range(len(source)):
        try:
            loaded = source.load(item, ItemRNG(0, [0], [item]))
        except UnreadableItem as problem:
            reasons[source.name(item)] = str(problem)
            continue
        assert loaded["wavs"].isfinite().all()
        lengths[source.name(item)] = loaded["wavs"].shape[1]

    assert {name: length for name, length in lengths.items() if not name.startswith("a-")} == unusual
    # Empty files are skipped before anything is read.
    assert reasons.keys() == {name for name in unusable if "empty" not in name}
    for name, reason in reasons.items():
        assert unusable[name] in reason, name


def test_unusual_rates_and_channels_become_mono_at_the_rate_of_the_model(folder: Path) -> None:
    add_unusual(folder)
    source = source_of(folder)
    indices = {source.name(item): item for item in range(len(source))}
    waves = {
        name: source.load(indices[name], ItemRNG(0, [0], [indices[name]]))["wavs"]
        for name in ("slow.wav", "fast.flac", "eight.ogg", "silent.mp3")
    }
    powers = {name: np.abs(np.fft.rfft(wave[0].numpy() * np.hanning(RATE))) ** 2 for name, wave in waves.items()}
    assert {wave.shape for wave in waves.values()} == {(1, RATE)}
    assert powers["slow.wav"].argmax() == powers["fast.flac"].argmax() == 220
    # Tones of 220 to 430 Hz, one per channel.
    assert {int(powers["eight.ogg"][low - 5 : low + 5].argmax()) + low - 5 for low in range(220, 460, 30)} == {
        *range(220, 460, 30)
    }
    assert waves["silent.mp3"].abs().max() < 1e-3


def test_only_unusable_files_are_an_error(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    unusable = add_unusable(folder)

    outcome = quintet("data", "check", folder)

    assert outcome.code == 1
    assert f"{len(unusable)} audio files found, 0 usable" in outcome.output
    assert "next:" not in outcome.output + outcome.errors
