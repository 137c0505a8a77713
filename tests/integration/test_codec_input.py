"""Audio files of many shapes through the commands of the codec: training, encoding, decoding."""

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
"""Sampling rate and hop length of the tiny codec."""
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
    """A codec trained on ordinary clips."""
    home = tmp_path_factory.mktemp("codec")
    output = train(ordinary(home / "data"), home / "run")
    assert "resampled" not in output
    return home / "run"


def test_trains_on_very_short_stereo_silent_and_resampled_clips(tmp_path: Path) -> None:
    data = ordinary(tmp_path / "data", 2)
    write(data / "one-frame.wav", tone(HOP), RATE)
    write(data / "part-of-a-frame.wav", tone(HOP - 5), RATE)
    write(data / "one-sample.wav", tone(2)[:, 1:], RATE)
    write(data / "stereo.wav", tone(4000, channels=2), RATE)
    write(data / "silent.wav", np.zeros((1, 4000), np.float32), RATE)
    write(data / "fast.wav", tone(16_000, 4 * RATE), 4 * RATE)

    output = train(data, tmp_path / "run", "train.steps=6", "data.validation_fraction=0")
    succeed("eval", tmp_path / "run", "--data", data)

    assert output.count(f"resampled to the {RATE} Hz of the model (model.sample_rate): ") == 1
    data_record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(data_record["train"]) == 8
    assert not data_record["skipped"]
    metrics = json.loads((tmp_path / "run" / "eval-data.json").read_text())
    assert np.isfinite([metrics["mel_distance"], metrics["stft_distance"], metrics["si_sdr"]]).all()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(np.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))


def test_silence_alone_trains_and_has_no_si_sdr(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(8):
        write(data / f"{number}.wav", np.zeros((1, 4000), np.float32), RATE)

    train(data, tmp_path / "run")
    succeed("eval", tmp_path / "run")

    metrics = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert "si_sdr" not in metrics
    assert np.isfinite(metrics["mel_distance"])


@pytest.mark.parametrize(
    ("samples", "rate", "channels", "frames"),
    [(HOP, RATE, 1, 1), (HOP - 5, RATE, 1, 1), (1, RATE, 1, 1), (HOP + 1, RATE, 1, 2), (4000, RATE, 2, 125),
     (16_000, 4 * RATE, 1, 125), (5513, 11_025, 3, 126)],
    ids=["one frame", "part of a frame", "one sample", "a frame and a sample", "stereo", "four times the rate",
         "odd rate, three channels"],
)  # fmt: skip
def test_a_file_is_encoded_to_whole_frames_and_decoded_to_the_same_length(
    run: Path, tmp_path: Path, samples: int, rate: int, channels: int, frames: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "clip.wav", tone(samples, rate, channels), rate)

    outcome = succeed("encode", run, data, "--out", tmp_path / "codes")
    succeed("decode", run, tmp_path / "codes", "--out", tmp_path / "decoded")

    codes, _ = read_codes(tmp_path / "codes")
    assert codes.shape == (1, frames, 2)
    assert codes.min() >= 0
    assert (f"resampled to the {RATE} Hz of the model (model.sample_rate): 1 of {rate} Hz" in outcome.errors) == (
        rate != RATE
    )
    (decoded,) = (tmp_path / "decoded").glob("[!.]*")
    samples_out = read_audio(decoded)
    assert samples_out.shape == (1, frames * HOP)
    assert np.isfinite(samples_out).all()


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
    # Rounding to 16 bits before or after averaging the channels differs.
    assert (codes[0] == codes[1]).float().mean() > 0.98
    assert (codes[2] == codes[3]).all()
    assert (codes[2] != codes[0]).any()


def test_a_folder_of_empty_files_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(12):
        write(data / f"{number}.wav", np.zeros((1, 0), np.float32), RATE)

    outcome = quintet("train", "audio-codec", data, "--out", tmp_path / "run", *TINY_AUDIO_CODEC, *SHORT)

    assert outcome.code == 2
    assert "items can be read (0.wav: holds no sound: its length is zero)" in error_line(outcome.errors)
