"""Sounds as people have them, through the codec's commands: trained on, encoded, decoded, whatever their shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from contract.cases import TINY_AUDIO_CODEC
from helpers import error_line, quintet, succeed
from quintet.codes import read_codes
from quintet.media.audio import Samples, read_audio, write_audio

RATE, HOP = 8000, 32
"""Of the tiny codec."""
SHORT = ("train.steps=4", "eval.every=4", "sample.every=4", "checkpoint.every=4", "data.validation_fraction=0.25")


def tone(samples: int, rate: int = RATE, channels: int = 1) -> Samples:
    time = np.arange(samples) / rate
    return np.stack([0.4 * np.sin(2 * np.pi * (300 + 40 * each) * time) for each in range(channels)]).astype(np.float32)


def ordinary(folder: Path, count: int = 8) -> Path:
    for number in range(count):
        write_audio(tone(4000), folder / f"tone-{number}.wav", RATE)
    return folder


def write(path: Path, samples: Samples, rate: int) -> None:
    soundfile.write(path, samples.T, rate)


def train(data: Path, out: Path, *more: str) -> str:
    return succeed("train", "audio-codec", data, "--out", out, *TINY_AUDIO_CODEC, *SHORT, *more).errors


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A codec of ordinary clips."""
    home = tmp_path_factory.mktemp("codec")
    said = train(ordinary(home / "data"), home / "run")
    assert "resampled" not in said
    return home / "run"


def test_it_trains_on_clips_of_one_frame_and_less_of_several_channels_and_silent_ones(tmp_path: Path) -> None:
    data = ordinary(tmp_path / "data", 2)
    write(data / "one-frame.wav", tone(HOP), RATE)
    write(data / "part-of-a-frame.wav", tone(HOP - 5), RATE)
    write(data / "one-sample.wav", tone(2)[:, 1:], RATE)
    write(data / "stereo.wav", tone(4000, channels=2), RATE)
    write(data / "silent.wav", np.zeros((1, 4000), np.float32), RATE)
    write(data / "fast.wav", tone(16_000, 4 * RATE), 4 * RATE)

    said = train(data, tmp_path / "run", "train.steps=6", "data.validation_fraction=0")
    succeed("eval", tmp_path / "run", "--data", data)

    assert said.count(f"resampled to the {RATE} Hz of the model (model.sample_rate): ") == 1
    found = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(found["train"]) == 8
    assert not found["skipped"]
    figures = json.loads((tmp_path / "run" / "eval-data.json").read_text())
    assert np.isfinite([figures["mel_distance"], figures["stft_distance"], figures["si_sdr"]]).all()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))


def test_only_silence_trains_and_has_no_ratio(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(8):
        write(data / f"{number}.wav", np.zeros((1, 4000), np.float32), RATE)

    train(data, tmp_path / "run")
    succeed("eval", tmp_path / "run")

    figures = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert "si_sdr" not in figures
    assert np.isfinite(figures["mel_distance"])


@pytest.mark.parametrize(
    ("samples", "rate", "channels", "frames"),
    [(HOP, RATE, 1, 1), (HOP - 5, RATE, 1, 1), (1, RATE, 1, 1), (HOP + 1, RATE, 1, 2), (4000, RATE, 2, 125),
     (16_000, 4 * RATE, 1, 125), (5513, 11_025, 3, 126)],
    ids=["one frame", "part of a frame", "one sample", "a frame and a sample", "stereo", "four times the rate",
         "odd rate, three channels"],
)  # fmt: skip
def test_a_file_becomes_whole_frames_and_sound_of_as_many(
    run: Path, tmp_path: Path, samples: int, rate: int, channels: int, frames: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "clip.wav", tone(samples, rate, channels), rate)

    said = succeed("encode", run, data, "--out", tmp_path / "codes")
    succeed("decode", run, tmp_path / "codes", "--out", tmp_path / "decoded")

    codes, _ = read_codes(tmp_path / "codes")
    assert codes.shape == (1, frames, 2)
    assert codes.min() >= 0
    assert (f"resampled to the {RATE} Hz of the model (model.sample_rate): 1 of {rate} Hz" in said.errors) == (
        rate != RATE
    )
    (decoded,) = (tmp_path / "decoded").iterdir()
    made = read_audio(decoded)
    assert made.shape == (1, frames * HOP)
    assert np.isfinite(made).all()


def test_channels_are_averaged_and_resampling_keeps_the_codes(run: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    both = tone(4000, channels=2)
    write(data / "a-mixed.wav", both.mean(0, keepdims=True), RATE)
    write(data / "b-stereo.wav", both, RATE)
    write(data / "c-silent.wav", np.zeros((1, 4000), np.float32), RATE)
    write(data / "d-silent-stereo.wav", np.zeros((2, 16_000), np.float32), 4 * RATE)

    succeed("encode", run, data, "--out", tmp_path / "codes")

    codes, _ = read_codes(tmp_path / "codes")
    # Sixteen bits round the mean of two channels otherwise than each of them.
    assert (codes[0] == codes[1]).float().mean() > 0.98
    assert (codes[2] == codes[3]).all()
    assert (codes[2] != codes[0]).any()


def test_a_codec_of_files_without_sound_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(12):
        write(data / f"{number}.wav", np.zeros((1, 0), np.float32), RATE)

    refused = quintet("train", "audio-codec", data, "--out", tmp_path / "run", *TINY_AUDIO_CODEC, *SHORT)

    assert refused.code == 2
    assert "items can be read (0.wav: holds no sound: its length is zero)" in error_line(refused.errors)
