"""Stereo through the real commands: a codec of two channels, and SoundStorm on its codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from contract.cases import GOLDEN, TINY_AUDIO_CODEC, TINY_SOUNDSTORM
from helpers import error_line, made_once, quintet, succeed
from quintet import AudioCodecPipeline, SoundStormPipeline
from quintet.codes import read_codes
from quintet.media.audio import Samples, read_audio, write_audio

RATE, HOP = 8000, 32
SHORT = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2", "data.validation_fraction=0.25")
STEREO = ("model.channels=2", "model.num_quantizers=4")


def tone(samples: int, channels: int = 2, pitch: float = 220.0) -> Samples:
    time = np.arange(samples) / RATE
    return np.stack([0.4 * np.sin(2 * np.pi * (pitch + 40 * each) * time) for each in range(channels)]).astype("f4")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stereo files, and one each of one and of six channels."""
    folder = tmp_path_factory.mktemp("stereo")
    for number in range(8):
        channels = {0: 1, 1: 6}.get(number, 2)
        write_audio(tone(2400 + 160 * number, channels, 200 + 50 * number), folder / f"{number}.wav", RATE)
    return folder


@pytest.fixture(scope="module")
def codec(data: Path, shared: Path) -> Path:
    """A stereo codec. Read only."""
    return made_once(
        shared,
        "stereo-codec",
        lambda run: succeed("train", "audio-codec", data, "--out", run, *TINY_AUDIO_CODEC, *SHORT, *STEREO),
    )


@pytest.fixture(scope="module")
def storm(data: Path, codec: Path, shared: Path) -> Path:
    """A SoundStorm of the codes of the stereo codec, conditioned on a MuLaN, which is mono. Read only."""
    words = (*TINY_SOUNDSTORM, *SHORT, f"tokenizer={codec}", "data.windows=2", "sample.best_of=1")
    return made_once(shared, "stereo-storm", lambda run: succeed("train", "soundstorm", data, "--out", run, *words))


def test_files_are_encoded_and_decoded_in_stereo(codec: Path, data: Path, tmp_path: Path) -> None:
    succeed("encode", codec, data, "--out", tmp_path / "codes")
    succeed("decode", codec, tmp_path / "codes", "--out", tmp_path / "decoded")
    codes, _ = read_codes(tmp_path / "codes")
    assert codes.shape == (8, (2400 + 7 * 160) // HOP, 4)
    decoded = sorted((tmp_path / "decoded").glob("*.wav"))
    assert [read_audio(path, mono=False).shape for path in decoded] == [(2, 2400 + 160 * number) for number in range(8)]


def test_a_mono_file_has_the_codes_of_two_equal_channels(codec: Path, tmp_path: Path) -> None:
    for name, channels in (("a", 1), ("b", 2)):
        write_audio(np.repeat(tone(2400, 1), channels, axis=0), tmp_path / "data" / f"{name}.wav", RATE)
    succeed("encode", codec, tmp_path / "data", "--out", tmp_path / "codes")
    codes, _ = read_codes(tmp_path / "codes")
    assert torch.equal(codes[0], codes[1])


def test_evaluation_and_samples_of_a_stereo_codec(codec: Path, data: Path, tmp_path: Path) -> None:
    succeed("eval", codec, "--data", data, "--out", tmp_path / "eval.json")
    metrics = json.loads((tmp_path / "eval.json").read_text())
    assert np.isfinite([metrics["mel_distance"], metrics["si_sdr"], metrics["si_sdr_side"]]).all()
    succeed("sample", codec, "--num", 2, "--out", tmp_path / "out")
    waves = sorted((tmp_path / "out").glob("*.wav"))
    assert len(waves) == 4
    assert {len(read_audio(path, mono=False)) for path in waves} == {2}
    succeed("export", codec, tmp_path / "hub")
    exported = AudioCodecPipeline.from_pretrained(tmp_path / "hub")
    assert exported.codec.channels == 2


def test_a_stereo_codec_is_planned() -> None:
    plan = ("plan", "audio-codec", "--preset", "debug", "--device", "4090")
    mono, stereo = (succeed(*plan, *keys).output for keys in ((), ("model.channels=2",)))
    assert "samples per device" in stereo
    assert mono != stereo


@pytest.mark.parametrize("seconds", [0.2, 1.0], ids=["one window", "several windows"])
def test_soundstorm_writes_stereo(storm: Path, seconds: float, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed(
        *("sample", storm, "--text", "a flute", "--num", 2, "--seconds", seconds, "--out", out),
        *("sample.best_of=2", "sample.steps=[1]"),
    )
    for number in range(2):
        assert read_audio(out / f"00{number}.wav", mono=False).shape == (2, round(seconds * RATE))
    (line, *_) = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()][1:]
    assert -1 <= line["mulan_score"] <= 1
    succeed("eval", storm)


def test_soundstorm_continues_and_keeps_stereo_prompts(storm: Path, codec: Path, data: Path, tmp_path: Path) -> None:
    prompt = data / "2.wav"
    succeed("sample", storm, "--prompt", prompt, "--seconds", 0.6, "--num", 1, "--out", tmp_path / "continued")
    assert read_audio(tmp_path / "continued" / "000.wav", mono=False).shape == (2, 4800)
    original = AudioCodecPipeline.from_pretrained(codec)
    samples = torch.from_numpy(read_audio(prompt, mono=False))[None, :, :2720]
    expected = original.decode(original.encode(samples))[0]
    (wave,) = SoundStormPipeline.from_pretrained(storm)(prompt=prompt, keep="0-0.1,0.2-0.25")
    assert wave.shape == (2, 2720)
    for start, end in ((0, 800), (1600, 2000)):
        torch.testing.assert_close(wave[:, start:end], expected[:, start:end], rtol=0, atol=1e-5)
    assert not torch.allclose(wave[:, 1000:1400], expected[:, 1000:1400], atol=1e-3)


def test_channels_that_do_not_fit_are_refused(data: Path, tmp_path: Path) -> None:
    for keys, message in (
        (("model.channels=2", "model.num_quantizers=3"), "model.num_quantizers=3 must be even with model.channels=2"),
        (("model.channels=3",), "model.channels"),
    ):
        outcome = quintet("train", "audio-codec", data, "--out", tmp_path / "run", *TINY_AUDIO_CODEC, *SHORT, *keys)
        assert outcome.code == 2
        assert message in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def test_a_mono_codec_reads_stereo_as_before(data: Path, tmp_path: Path) -> None:
    """Of the golden codec, which is older than stereo."""
    codec = GOLDEN / "audio-codec-format-1" / "hub"
    succeed("encode", codec, data, "--out", tmp_path / "codes")
    succeed("decode", codec, tmp_path / "codes", "--out", tmp_path / "decoded")
    assert {len(read_audio(path, mono=False)) for path in (tmp_path / "decoded").glob("*.wav")} == {1}
