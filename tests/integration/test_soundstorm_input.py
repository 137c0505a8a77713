"""Inputs of SoundStorm: audio files of many shapes, invalid semantic tokens, texts and prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from contract.cases import GOLDEN, TINY_SOUNDSTORM
from helpers import copied, error_line, made_once, quintet, succeed
from quintet.media.audio import Samples, read_audio, write_audio

RATE = 8000
"""Sampling rate of the golden codec; its hop length is 32 samples."""
SHORT = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2", "data.validation_fraction=0.25")


def tone(samples: int, rate: int = RATE, channels: int = 1, pitch: float = 220.0) -> Samples:
    time = np.arange(samples) / rate
    waves = [0.5 * np.sin(2 * np.pi * (pitch + 40 * each) * time) for each in range(channels)]
    return np.stack(waves).astype(np.float32)


def tones(folder: Path, count: int = 8) -> Path:
    """Short tones at the sampling rate of the codec, without captions."""
    for number in range(count):
        write_audio(tone(1600 + 160 * number, pitch=200 + 50 * number), folder / f"{number}.wav", RATE)
    return folder


def command(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "soundstorm", data, "--out", out, *TINY_SOUNDSTORM, *SHORT, *more)


@pytest.fixture(scope="module")
def conditional(sounds: Path, shared: Path) -> Path:
    """A text-conditional model. Read only."""
    return made_once(shared, "soundstorm-conditional", lambda folder: succeed(*command(sounds, folder)))


@pytest.fixture(scope="module")
def unconditional(sounds: Path, shared: Path) -> Path:
    """An unconditional model. Read only."""
    return made_once(
        shared, "soundstorm-unconditional", lambda folder: succeed(*command(sounds, folder, "condition=null"))
    )


def refusal(*arguments: object) -> str:
    outcome = quintet(*arguments)
    assert outcome.code == 2
    return error_line(outcome.errors)


# --- audio --------------------------------------------------------------------------------------------------------


def test_audio_of_another_rate_is_resampled_with_a_message(sounds: Path, tmp_path: Path) -> None:
    output = succeed(*command(sounds, tmp_path / "run")).errors
    assert output.count("resampled to the 8000 Hz of the tokenizer: 45 of 16000 Hz, of the first 45 files") == 1
    output = succeed(*command(tones(tmp_path / "tones"), tmp_path / "other")).errors
    assert "resampled" not in output


def test_clips_of_one_frame_and_of_several_channels_are_used(tmp_path: Path) -> None:
    data = tones(tmp_path / "data", 4)
    write_audio(tone(1), data / "one-sample.wav", RATE)
    write_audio(tone(32), data / "one-frame.wav", RATE)
    write_audio(tone(3200, channels=2), data / "stereo.wav", RATE)
    write_audio(tone(3200, channels=6), data / "six.wav", RATE)
    run = tmp_path / "run"
    succeed(*command(data, run, "train.batch_size=8", "data.validation_fraction=0", "train.steps=4"))
    record = json.loads((run / "data.json").read_text())
    assert record["skipped"] == {}
    assert len(record["train"]) == 8
    metrics = json.loads(run.joinpath("metrics.jsonl").read_text().splitlines()[-1])
    assert np.isfinite(metrics["validation/loss"])
    succeed("eval", run)


def test_clips_of_one_frame_alone_can_be_trained_on(tmp_path: Path) -> None:
    for number in range(8):
        write_audio(tone(20 + number), tmp_path / "data" / f"{number}.wav", RATE)
    succeed(*command(tmp_path / "data", tmp_path / "run"))
    succeed("sample", tmp_path / "run", "--num", 2, "--out", tmp_path / "out")


# --- semantic tokens ----------------------------------------------------------------------------------------------


def tokens(folder: Path, rows: Sequence[Sequence[int]], *, num_codes: int = 6, rate: float = 50.0) -> Path:
    """Semantic tokens of the tones, in the format of `quintet encode`."""
    folder.mkdir()
    longest = max(map(len, rows))
    padded = [[*row, *[-1] * (longest - len(row))] for row in rows]
    save_file({"codes": torch.tensor(padded, dtype=torch.int32)}, folder / "codes.safetensors")
    items = [{"file": f"{number}.wav", "row": number} for number in range(len(rows))]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "codes.json").write_text(json.dumps({"num_codes": num_codes, "rate": rate}))
    return folder


def fitting() -> list[list[int]]:
    """Fifty tokens per second."""
    return [[(number + position) % 6 for position in range(10 + number)] for number in range(8)]


def test_a_model_of_semantic_tokens_generates_validation_clips(tmp_path: Path) -> None:
    data, folder = tones(tmp_path / "data"), tokens(tmp_path / "tokens", fitting())
    run = tmp_path / "run"
    succeed(*command(data, run, f"data.semantic_tokens={folder}", "condition=null"))
    succeed("sample", run, "--num", 2, "--out", tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert "made from its semantic tokens" in lines[0]["columns"]
    assert "semantic tokens, which come with the data" in refusal("sample", run, "--seconds", 0.2)
    assert "takes no text" in refusal("sample", run, "--text", "a flute")
    succeed("resume", run, "train.steps=4")


def test_invalid_tokens_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = tones(tmp_path / "data")
    outside = [[6, *row[1:]] for row in fitting()]
    gap = [[row[0], -1, *row[2:]] for row in fitting()]
    long, elsewhere = [row * 2 for row in fitting()], fitting()
    cases: dict[str, tuple[list[list[int]], dict[str, Any], str]] = {
        "outside": (outside, {}, "tokens of 0.wav are not in the range 0 to 5"),
        "gap": (gap, {}, "gaps in the tokens of 0.wav"),
        "long": (
            long,
            {},
            "0.wav: 20 semantic tokens do not fit 50 frames: with 50 tokens and 250 frames per second, 10 are expected",
        ),
        "slow": (elsewhere, {"rate": 10.0}, "semantic tokens do not fit"),
        "no rate": (elsewhere, {"rate": 0.0}, "'num_codes' or 'rate' is not a valid number"),
    }
    for name, (rows, keys, message) in cases.items():
        folder = tokens(tmp_path / name, rows, **keys)
        assert message in refusal(*command(data, tmp_path / "run", f"data.semantic_tokens={folder}")), name
    assert "does not hold" in refusal(*command(data, tmp_path / "run", f"data.semantic_tokens={data}"))
    other = tokens(tmp_path / "other", fitting())
    (other / "items.jsonl").write_text(json.dumps({"file": "nobody.wav", "row": 0}) + "\n")
    assert "has no tokens of any file" in refusal(*command(data, tmp_path / "run", f"data.semantic_tokens={other}"))
    assert not (tmp_path / "run").exists()


def test_tokens_changed_since_the_start_are_detected(tmp_path: Path) -> None:
    data, folder = tones(tmp_path / "data"), tokens(tmp_path / "tokens", fitting())
    run = tmp_path / "run"
    succeed(*command(data, run, f"data.semantic_tokens={folder}"))
    changed = load_file(folder / "codes.safetensors")["codes"]
    changed[0, 0] = (changed[0, 0] + 1) % 6
    save_file({"codes": changed}, folder / "codes.safetensors")
    assert "others may have changed" in refusal("resume", run, "train.steps=4")
    (folder / "codes.json").write_text(json.dumps({"num_codes": 9, "rate": 50.0}))
    assert "model.semantic_codes=6, but" in refusal("eval", run)


# --- sampling -----------------------------------------------------------------------------------------------------


def test_texts_become_audio_files(conditional: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--text", "a rising flute", "--text", "a low drum", "--num", 2, "--seconds", 0.2)
    succeed("sample", conditional, *options, "--out", out, "sample.best_of=2", "sample.guidance_scale=2")
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == ["spectrograms.png", *(f"00{number}.wav" for number in range(4))]
    assert [line["text"] for line in lines[1:]] == ["a rising flute"] * 2 + ["a low drum"] * 2
    for line in lines[1:]:
        assert line["settings"]["best_of"] == 2
        assert -1 <= line["mulan_score"] <= 1
        assert line["seconds"] == 0.2
        assert read_audio(out / line["file"]).shape == (1, 1600)
    succeed("sample", conditional, *options, "--out", tmp_path / "again", "sample.best_of=2", "sample.guidance_scale=2")
    for line in lines[1:]:
        assert (out / line["file"]).read_bytes() == (tmp_path / "again" / line["file"]).read_bytes()


def test_a_clip_is_continued(conditional: Path, unconditional: Path, tmp_path: Path) -> None:
    write_audio(tone(3200, 16_000, channels=2), tmp_path / "clip.wav", 16_000)
    for run in (conditional, unconditional):
        out = tmp_path / run.name
        outcome = succeed("sample", run, "--prompt", tmp_path / "clip.wav", "--num", 1, "--out", out)
        assert "clip.wav: resampled from 16000 Hz to the 8000 Hz of the tokenizer" in outcome.errors
        assert read_audio(out / "000.wav").shape == (1, 2400)
        line = json.loads((out / "samples.jsonl").read_text().splitlines()[1])
        assert line["prompt"] == str(tmp_path / "clip.wav")
        assert "mulan_score" not in line


def test_invalid_sampling_options_are_refused(conditional: Path, unconditional: Path, tmp_path: Path) -> None:
    write_audio(tone(2400), tmp_path / "long.wav", RATE)
    write_audio(tone(800), tmp_path / "short.wav", RATE)
    (tmp_path / "words.wav").write_text("this is not audio")
    long, short = ("--prompt", tmp_path / "long.wav"), ("--prompt", tmp_path / "short.wav")
    for run, options, message in (
        (unconditional, ("--text", "a flute"), "was trained without --condition"),
        (unconditional, ("sample.best_of=2",), "it needs --text, and a model trained with --condition"),
        (conditional, ("--seconds", 1e6), "--seconds 1e+06 is longer than a day, 86400 s"),
        (conditional, ("--seconds", 0), "--seconds 0 must be a number above 0"),
        (conditional, ("--seconds", "nan"), "--seconds nan must be a number above 0"),
        (
            conditional,
            long,
            "is 0.30 s long and leaves nothing to generate: the length of a clip is 0.3 s (the maximum",
        ),
        (
            conditional,
            (*short, "--seconds", 0.08),
            "is 0.10 s long and leaves nothing to generate: the length of a clip is 0.08 s (--seconds); set longer",
        ),
        (conditional, ("--prompt", tmp_path / "words.wav"), "not a sound file"),
        (conditional, ("--prompt", tmp_path / "none.wav"), "none.wav"),
        (conditional, (*short, "sample.best_of=2"), "it needs --text"),
        (conditional, ("--negative", "a drum", "--text", "a flute"), "a negative prompt needs guidance"),
    ):
        assert message in refusal("sample", run, "--out", tmp_path / "out", *options), options
    assert not (tmp_path / "out").exists()


def test_a_moved_run_contains_its_codec_and_mulan(conditional: Path, tmp_path: Path) -> None:
    run = copied(conditional, tmp_path / "moved")
    assert (run / "tokenizer" / "model.safetensors").is_file()
    assert (run / "condition" / "quantizer.safetensors").is_file()
    config = (run / "config.yaml").read_text().replace(str(GOLDEN), "nowhere")
    (run / "config.yaml").write_text(config)
    succeed("sample", run, "--text", "a flute", "--num", 1, "--out", tmp_path / "out")
