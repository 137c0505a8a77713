"""Inputs of SoundStorm models that read captions: texts, kept parts of prompts, long clips and long files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from contract.cases import GOLDEN, TINY_SOUNDSTORM
from helpers import copied, error_line, made_once, quintet, succeed
from quintet import SoundStormPipeline
from quintet.media.audio import Samples, read_audio, write_audio
from quintet.pipelines.loading import open_pipeline

RATE = 8000
"""Sampling rate of the golden codec; its hop length is 32 samples."""
SHORT = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2", "data.validation_fraction=0.25")
TEXT_KEYS = ("condition=null", "model.text_dim=16", "model.text_length=16")


def tone(samples: int, rate: int = RATE) -> Samples:
    return np.sin(np.arange(samples) * 2 * np.pi * 220 / rate)[None].astype(np.float32) / 2


def command(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "soundstorm", data, "--out", out, *TINY_SOUNDSTORM, *SHORT, *TEXT_KEYS, *more)


@pytest.fixture(scope="module")
def words(sounds: Path, shared: Path) -> Path:
    """A model that reads words. Read only."""
    return made_once(shared, "soundstorm-words", lambda run: succeed(*command(sounds, run, "model.text=words")))


@pytest.fixture(scope="module")
def pipeline(words: Path) -> SoundStormPipeline:
    return SoundStormPipeline.from_pretrained(words)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """0.3 s of a tone."""
    return write_audio(tone(2400), tmp_path / "clip.wav", RATE)


def refusal(*arguments: object) -> str:
    outcome = quintet(*arguments)
    assert outcome.code == 2
    return error_line(outcome.errors)


# --- texts --------------------------------------------------------------------------------------------------------


def test_texts_become_audio_files_without_a_mulan(words: Path, tmp_path: Path) -> None:
    options = ("--text", "a rising flute", "--num", 1, "--negative", "a drum", "sample.guidance_scale=2")
    succeed("sample", words, *options, "--out", tmp_path / "out")
    line = json.loads((tmp_path / "out" / "samples.jsonl").read_text().splitlines()[1])
    assert line["text"] == "a rising flute"
    assert line["negative"] == "a drum"
    assert "mulan_score" not in line
    assert "overlap" not in line["settings"]
    run = copied(words, tmp_path / "run")
    succeed("eval", run)
    metrics = json.loads((run / "eval.json").read_text())
    assert {"match_timbre", "match_tempo", "match_timbre_reconstruction"} <= metrics.keys()


def test_unknown_and_surplus_words_are_named(words: Path, tmp_path: Path) -> None:
    long = "a flute " * 20 + "and a zither, 木琴"
    said = succeed("sample", words, "--text", long, "--num", 1, "--out", tmp_path / "out").errors
    assert "'zither', '木琴'" in said
    assert "'flute'" not in said
    assert "prompt truncated to 15 words (model.text_length)" in said


@pytest.mark.parametrize("text", ["", "  \t"])
def test_an_empty_text_is_named_and_generates_without_a_text(words: Path, text: str, tmp_path: Path) -> None:
    options = ("--text", "a flute", "--text", text, "--num", 1)
    said = succeed("sample", words, *options, "--out", tmp_path / "out").errors
    assert said.count("warning: a --text is empty; its clips are generated without a text") == 1
    said = succeed("sample", words, "--num", 1, "--out", tmp_path / "none").errors
    assert "empty" not in said


def test_bytes_read_any_script(tmp_path: Path) -> None:
    for number, text in enumerate(("長笛", "ドラム", "скрипка", "🎻")):
        write_audio(tone(1600 + 160 * number), tmp_path / "data" / f"{number}.wav", RATE)
        (tmp_path / "data" / f"{number}.txt").write_text(text)
    run = tmp_path / "run"
    succeed(*command(tmp_path / "data", run, "model.text=bytes", "train.batch_size=2"))
    said = succeed("sample", run, "--text", "скрипка", "--text", "", "--num", 1, "--out", tmp_path / "out").errors
    assert "no training caption" not in said
    assert "truncated" not in said


def test_missing_captions_are_refused_with_the_fix(tmp_path: Path) -> None:
    for number in range(4):
        write_audio(tone(1600), tmp_path / "data" / f"{number}.wav", RATE)
    (tmp_path / "data" / "0.txt").write_text("a tone")
    sentence = refusal(*command(tmp_path / "data", tmp_path / "run", "model.text=words"))
    assert "3 of 4 clips have no caption" in sentence
    assert "data.allow_missing_captions=true" in sentence
    allowed = ("model.text=words", "data.allow_missing_captions=true", "train.batch_size=2")
    succeed(*command(tmp_path / "data", tmp_path / "run", *allowed))


# --- parts of a prompt --------------------------------------------------------------------------------------------


def test_kept_seconds_equal_the_reconstruction_of_the_codec(pipeline: SoundStormPipeline, clip: Path) -> None:
    codec = open_pipeline(GOLDEN / "audio-codec-format-1" / "hub")
    samples = torch.from_numpy(read_audio(clip, RATE))
    expected = codec.decode(codec.encode(samples))[0]  # type: ignore[attr-defined]
    kept = torch.zeros(2400, dtype=torch.bool)
    kept[:800], kept[1600:2000] = True, True
    for keep in ("0-0.1,0.2-0.25", [(0, 0.1), (0.2, 0.25)]):
        (wave,) = pipeline("a low flute", prompt=clip, keep=keep)
        assert wave.shape == (2400,)
        torch.testing.assert_close(wave[kept], expected[kept], rtol=0, atol=1e-5)
        assert not torch.allclose(wave[1000:1400], expected[1000:1400], atol=1e-3)


@pytest.mark.parametrize("seconds", [None, 1.5], ids=["as long as the prompt", "longer"])
def test_kept_seconds_of_a_long_clip_equal_the_reconstruction_of_the_codec(
    words: Path, pipeline: SoundStormPipeline, seconds: float | None, tmp_path: Path
) -> None:
    """Over several windows of 0.3 s, whose codes are decoded as a stream."""
    prompt = write_audio(tone(8000), tmp_path / "prompt.wav", RATE)
    codec = open_pipeline(GOLDEN / "audio-codec-format-1" / "hub")
    expected = codec.decode(codec.encode(torch.from_numpy(read_audio(prompt, RATE))))[0]  # type: ignore[attr-defined]
    spans, made = (slice(0, 1600), slice(4000, 5600)), slice(2400, 3200)
    keys = {"sample.steps": [1]}
    (wave,) = pipeline.with_keys(keys)("a flute", prompt=prompt, keep="0-0.2,0.5-0.7", seconds=seconds)
    for span in spans:
        torch.testing.assert_close(wave[span], expected[span], rtol=0, atol=1e-5)
    assert not torch.allclose(wave[made], expected[made], atol=1e-3)
    options = ("--prompt", prompt, "--keep", "0-0.2,0.5-0.7", "--num", 1, "sample.steps=[1]", "--out", tmp_path / "out")
    succeed("sample", words, *options, *(() if seconds is None else ("--seconds", seconds)))
    written = torch.from_numpy(read_audio(tmp_path / "out" / "000.wav"))[0]
    assert written.shape == wave.shape
    for span in spans:  # a WAV file has 16 bits
        torch.testing.assert_close(written[span], expected[span], rtol=0, atol=2**-16 + 1e-5)


def test_parts_of_a_prompt_are_kept_by_the_command(words: Path, clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    succeed("sample", words, "--prompt", clip, "--keep", "0.1-0.3", "--seconds", 0.5, "--num", 1, "--out", out)
    assert read_audio(out / "000.wav").shape == (1, 4000)
    line = json.loads((out / "samples.jsonl").read_text().splitlines()[1])
    assert (line["keep"], line["prompt"], line["seconds"]) == ("0.1-0.3", str(clip), 0.5)
    again = tmp_path / "again"
    succeed(
        *("sample", words, "--prompt", clip, "--keep-every", 3, "--keep-quantizers", 1, "--num", 1),
        *("--text", "a flute", "--out", again),
    )
    line = json.loads((again / "samples.jsonl").read_text().splitlines()[1])
    assert (line["keep_every"], line["keep_quantizers"]) == ("3", "1")


def test_a_silent_prompt_of_another_rate_is_used(words: Path, tmp_path: Path) -> None:
    silent = write_audio(np.zeros((1, 4410), np.float32), tmp_path / "silent.wav", 22_050)
    said = succeed("sample", words, "--prompt", silent, "--keep", "0-0.1", "--num", 1, "--out", tmp_path / "out").errors
    assert "silent.wav: resampled from 22050 Hz to the 8000 Hz of the tokenizer" in said
    assert "silent.wav is silent" in said
    said = succeed("sample", words, "--prompt", silent, "--num", 1, "--out", tmp_path / "continued").errors
    assert said.count("warning: --prompt") == 1
    assert read_audio(tmp_path / "continued" / "000.wav").shape == (1, 2400)


def test_wrong_parts_of_a_prompt_are_refused(words: Path, clip: Path, tmp_path: Path) -> None:
    for options, message in (
        (("--keep", "0-1"), "--keep 0-1 is outside of the clip, which has 0.30 s"),
        (("--keep", "0.4-0.5"), "--keep 0.4-0.5 is outside of the clip, which has 0.30 s"),
        (("--keep", "0-0.2,0.1-0.3"), "--keep 0-0.2 and 0.1-0.3 overlap"),
        (("--keep", "0.2-0.1"), "--keep 0.2-0.1: a range must end after its start"),
        (("--keep", ""), "'' is not a range of seconds; write start-end"),
        (("--keep", "-1-2"), "'-1-2' is not a range of seconds; write start-end"),
        (("--keep", "0.1-0.1"), "--keep 0.1-0.1: a range must end after its start"),
        (("--keep", "start-end"), "--keep start-end: 'start-end' is not a range of seconds"),
        (("--keep", "0-0.3"), "nothing is left to generate"),
        (("--keep-quantizers", 2), "nothing is left to generate; keep fewer"),
        (("--keep", "0-0.2", "--seconds", 0.1), "--keep 0-0.2 is outside of the clip, which has 0.10 s"),
        (("--keep", "0-0.2", "--keep-quantizers", 3), "--keep-quantizers 3 is more than the 2 quantizers"),
    ):
        assert message in refusal("sample", words, "--prompt", clip, *options, "--out", tmp_path / "out"), options
    for option in (("--keep", "0-0.1"), ("--keep-every", 2), ("--keep-quantizers", 1)):
        sentence = refusal("sample", words, "--text", "a flute", *option, "--out", tmp_path / "out")
        assert "need --prompt FILE, of which they keep parts" in sentence
    assert not (tmp_path / "out").exists()


# --- long clips and long files ------------------------------------------------------------------------------------


def test_a_clip_longer_than_a_window_is_written_chunk_by_chunk(
    words: Path, pipeline: SoundStormPipeline, clip: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("--text", "a flute", "--seconds", 5, "--num", 1, "sample.steps=[1]", "sample.overlap=0.25")
    succeed("sample", words, *options, "--prompt", clip, "--out", out)
    long = read_audio(out / "000.wav")
    assert long.shape == (1, 40_000)
    line = json.loads((out / "samples.jsonl").read_text().splitlines()[1])
    assert (line["seconds"], line["settings"]["overlap"]) == (5.0, 0.25)
    keys = {"sample.steps": [1], "sample.overlap": 0.25}
    (wave,) = pipeline.with_keys(keys)("a flute", seconds=5, prompt=clip)
    np.testing.assert_allclose(wave.numpy(), long[0], atol=2**-15)


def test_a_model_is_trained_on_all_windows_of_long_files(tmp_path: Path) -> None:
    for number in range(3):
        write_audio(tone(8000 * (number + 1)), tmp_path / "data" / f"{number}.wav", RATE)
        (tmp_path / "data" / f"{number}.txt").write_text("a tone")
    keys = ("model.text=words", "data.seconds=0.25", "data.windows=all", "data.validation_fraction=0")
    succeed(*command(tmp_path / "data", tmp_path / "run", *keys))
    items = json.loads((tmp_path / "run" / "data.json").read_text())["train"]
    assert len(items) == 4 + 8 + 12
    assert "2.wav from 2.75 s" in items
    sentence = refusal(*command(tmp_path / "data", tmp_path / "other", "data.windows=0"))
    assert "data.windows" in sentence
