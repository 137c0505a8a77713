"""Phenaki with clips and images of every length, and with invalid options and keys."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contract.cases import GOLDEN, TINY_CVIVIT, TINY_PHENAKI
from films import counted, write_film
from helpers import error_line, made_once, quintet, succeed
from quintet.media.video import read_header, read_video
from quintet.media.video_writing import write_video

SHORT = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2", "data.validation_fraction=0.25")


def words(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "phenaki", data, "--out", out, *TINY_PHENAKI, *SHORT, *more)


@pytest.fixture(scope="module")
def run(videos: Path, shared: Path) -> Path:
    """A model of clips of five frames, two frames per code. Read only."""
    return made_once(shared, "phenaki", lambda folder: succeed(*words(videos, folder)))


def refusal(*arguments: object) -> str:
    refused = quintet(*arguments)
    assert refused.code == 2
    return error_line(refused.errors)


def frames_in(folder: Path) -> dict[str, int]:
    return {
        path.name: read_header(path).frames for path in sorted(folder.glob("*.*")) if path.suffix in (".mp4", ".gif")
    }


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


# --- sampling -----------------------------------------------------------------------------------------------------


def test_a_text_becomes_videos_a_filmstrip_and_a_list(run: Path, tmp_path: Path) -> None:
    succeed("sample", run, "--text", "a red/ball: moves", "--num", 2, "--out", tmp_path / "out")
    names = [f"{number:03d}-a-red-ball-moves.{kind}" for number in range(2) for kind in ("gif", "mp4")]
    assert frames_in(tmp_path / "out") == dict.fromkeys(names, 5)
    rows = records(tmp_path / "out")
    assert {str(row["file"]) for row in rows} == {*names, "filmstrip.png"}
    assert {row["text"] for row in rows[1:]} == {"a red/ball: moves"}
    # A second call overwrites nothing, and the same seed gives the same videos.
    succeed("sample", run, "--text", "a red/ball: moves", "--num", 2, "--out", tmp_path / "out")
    first, second = (read_video(tmp_path / "out" / f"000-a-red-ball-moves{again}.mp4") for again in ("", "-2"))
    assert np.array_equal(first, second)


def test_lengths_scenes_images_and_continuation(run: Path, tmp_path: Path) -> None:
    succeed("sample", run, "--text", "x", "--num", 1, "--frames", 11, "--out", tmp_path / "long", "sample.overlap=3")
    assert set(frames_in(tmp_path / "long").values()) == {11}

    (tmp_path / "scenes.txt").write_text("a red ball\n\na blue star\n", encoding="utf-8")
    command = ("sample", run, "--scenes", tmp_path / "scenes.txt", "--num", 2)
    succeed(*command, "--out", tmp_path / "scenes", "sample.overlap=3")
    assert list(frames_in(tmp_path / "scenes").values()) == [5 + 2] * 4
    assert records(tmp_path / "scenes")[1]["scenes"] == ["a red ball", "a blue star"]
    succeed(*command, "--frames", 4, "--out", tmp_path / "short scenes")
    assert set(frames_in(tmp_path / "short scenes").values()) == {8}

    succeed("sample", run, "--images", "--text", "x", "--num", 3, "--out", tmp_path / "images")
    images = {path.name for path in (tmp_path / "images").glob("*.png")}
    assert images == {"grid.png", *(f"{number:03d}-x.png" for number in range(3))}
    assert not frames_in(tmp_path / "images")

    write_film(tmp_path / "clip.mp4", counted(3))
    succeed("sample", run, "--prime", tmp_path / "clip.mp4", "--text", "x", "--num", 2, "--out", tmp_path / "continued")
    assert set(frames_in(tmp_path / "continued").values()) == {3 + 5 - 1}
    video = read_video(tmp_path / "continued" / "000-x.mp4")
    # The golden model generates noise; the first frames are the clip.
    assert abs(int(video[0].mean()) - int(counted(3)[0].mean())) < 12
    Image.fromarray(counted(1)[0]).save(tmp_path / "still.png")
    succeed("sample", run, "--prime", tmp_path / "still.png", "--text", "x", "--num", 1, "--out", tmp_path / "moved")
    assert set(frames_in(tmp_path / "moved").values()) == {5}


def test_long_clip_is_continued_from_its_last_frames(run: Path, tmp_path: Path) -> None:
    write_video(counted(30), tmp_path / "clip.webp")
    command = ("sample", run, "--prime", tmp_path / "clip.webp", "--text", "x", "--num", 1)
    outcome = succeed(*command, "--out", tmp_path / "out")
    assert "using only the last 3 of the 30 frames of" in outcome.errors
    video = read_video(tmp_path / "out" / "000-x.mp4")
    assert abs(int(video[2].mean()) - int(counted(30)[29].mean())) < 12
    assert "nothing would be left to generate" in refusal(*command, "--frames", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--text", "x", "--frames", 4), "--frames=4 is not 1 plus a multiple of 2"),
        (("--text", "x", "--frames", 4), "the nearest valid numbers are 3 and 5"),
        (("--scenes", "empty.txt"), "is empty; write one scene per line"),
        (("--scenes", "missing.txt"), "missing.txt cannot be read"),
        (("--scenes", "empty.txt", "--text", "x"), "--scenes cannot be combined with --text or --images"),
        (("--text", "x", "--prime", "missing.mp4"), "missing.mp4: cannot be opened"),
        (("--text", "x", "--prime", "empty.txt"), "empty.txt: empty file"),
        (("--images", "--frames", 5, "--text", "x"), "--images cannot be combined with --prime or --frames"),
        (("--text", "x", "--seconds", 2), "'phenaki' does not take --seconds"),
    ],
)
def test_invalid_options_are_refused(options: tuple[object, ...], message: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    arguments = [tmp_path / str(word) if str(word).endswith((".txt", ".mp4")) else word for word in options]
    assert message in refusal("sample", run, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_recipes_refuse_video_options(tmp_path: Path) -> None:
    muse = GOLDEN / "muse-format-1" / "hub"
    for option in (("--scenes", tmp_path / "x.txt"), ("--prime", tmp_path / "x.mp4"), ("--frames", 5), ("--images",)):
        assert f"'muse' does not take {option[0]}" in refusal("sample", muse, *option, "--out", tmp_path / "out")


# --- training -----------------------------------------------------------------------------------------------------


def test_clips_of_every_length_and_images_train_together(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number, frames in enumerate((1, 2, 3, 5, 9, 1, 4, 30)):
        write_video(counted(frames), data / f"clip{number}.webp")
        (data / f"clip{number}.txt").write_text(f"clip of {frames}")
    for number in range(4):
        Image.fromarray(counted(number + 1)[-1]).save(data / f"still-{'abcd'[number]}.png")
        (data / f"still-{'abcd'[number]}.txt").write_text("a still")
    (data / "damaged.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + b"\0" * 50)
    (data / "damaged.txt").write_text("nothing")
    succeed(
        *words(data, tmp_path / "run", "train.steps=6", "train.batch_size=4", f"data.cache_dir={tmp_path / 'cache'}")
    )
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(record["train"]) + len(record["validation"]) == 13
    assert list(record["skipped"]) == ["damaged.mp4"]
    succeed("eval", tmp_path / "run")
    # The tokenizer also trains on them.
    own = ("train.steps=4", "eval.every=4", "sample.every=4", "checkpoint.every=4")
    succeed("train", "cvivit", data, "--out", tmp_path / "tokenizer", *TINY_CVIVIT, *own)
    assert list(json.loads((tmp_path / "tokenizer" / "data.json").read_text())["skipped"]) == ["damaged.mp4"]
    succeed("sample", tmp_path / "run", "--images", "--text", "a still", "--num", 1, "--out", tmp_path / "out")


def test_folder_of_images_trains(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(8):
        Image.fromarray(counted(number + 1)[-1]).save(data / f"{number}.png")
        (data / f"{number}.txt").write_text(f"grey {number}")
    run = tmp_path / "run"
    succeed(*words(data, run, "data.frames=1", f"data.cache_dir={tmp_path / 'cache'}"))
    succeed("sample", run, "--text", "grey 3", "--num", 1, "--out", tmp_path / "out")
    assert set(frames_in(tmp_path / "out").values()) == {1}
    Image.fromarray(counted(1)[0]).save(tmp_path / "still.png")
    command = ("sample", run, "--prime", tmp_path / "still.png", "--text", "x", "--out", tmp_path / "continued")
    assert "single images: it cannot continue a video" in refusal(*command)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("data.frames=4",), "data.frames=4 is not 1 plus a multiple of 2"),
        (("data.frames=4",), "the nearest valid numbers are 3 and 5"),
        (("data.frames=259",), "data.frames=259 exceeds model.max_frames=257 of the tokenizer"),
        (("model.num_codes=64",), "model.num_codes=64, but the tokenizer"),
        (("model.grid=[3,4,4]",), "model.grid=(3, 4, 4), but the tokenizer"),
        (("model.low_res_grid=[2,2]", "model.low_res_num_codes=8"), "phenaki does not support it"),
        (("model.code_patch_size=[3,2,2]",), "a token may not span several latent frames"),
        (("model.code_patch_size=[1,3,2]",), "does not divide model.grid"),
        (
            ("loss.codebook_smoothing=0.5", "loss.label_smoothing=0.1"),
            "loss.codebook_smoothing=0.5 replaces label smoothing: leave out loss.label_smoothing=0.1, or set it to 0",
        ),
        (("loss.codebook_smoothing=-1", "loss.label_smoothing=0"), "loss.codebook_smoothing"),
        (("model.text=word",), "choose bytes, words, classes, vectors, none, or hf:PATH_OR_NAME"),
        (("sample.later_steps=0",), "sample.later_steps"),
        (("sample.texts=[]",), "give at least one prompt"),
        (("tokenizer_hash=x0123",), "tokenizer_hash=x0123, but the tokenizer"),
    ],
)
def test_invalid_keys_are_refused(keys: tuple[str, ...], message: str, videos: Path, tmp_path: Path) -> None:
    assert message in refusal(*words(videos, tmp_path / "run", *keys))
    assert not (tmp_path / "run").exists()


def test_init_from_a_run_with_another_tokenizer_is_refused(run: Path, videos: Path, tmp_path: Path) -> None:
    keys = ("--preset", "debug", "model.image_size=16", "model.dim=16", "model.head_dim=8", "model.codebook_size=32")
    other = tmp_path / "other"
    succeed("train", "cvivit", videos, "--out", other, *keys, "train.steps=1", "loss.discriminator=false")
    refused = refusal(*words(videos, tmp_path / "run", "--init", run, f"tokenizer={other}"))
    assert "was trained with another tokenizer" in refused


def test_words_and_codebook_smoothing_from_training_to_samples(videos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = (
        "model.text=words",
        "model.text_length=8",
        "loss.codebook_smoothing=0.5",
        "loss.label_smoothing=0",
        "loss.frame_autoregressive=true",
    )
    errors = succeed(*words(videos, run, *keys, "sample.later_steps=1")).errors
    assert "captions have more than 7 words and are truncated (model.text_length), for example 'a " in errors
    command = ("sample", run, "--text", "a word that nobody knows, and more than there is room for")
    errors = succeed(*command, "--num", 1, "--out", tmp_path / "out").errors
    assert "warning: prompt truncated to 7 words (model.text_length)" in errors
    assert frames_in(tmp_path / "out")


def test_codebook_smoothing_with_residual_quantizers(videos: Path, tmp_path: Path) -> None:
    keys = ("--preset", "debug", "model.image_size=16", "model.dim=16", "model.head_dim=8", "model.codebook_size=32")
    other, run = tmp_path / "other", tmp_path / "run"
    levels = ("model.num_quantizers=2", "train.steps=1", "loss.discriminator=false")
    succeed("train", "cvivit", videos, "--out", other, *keys, *levels)
    succeed(*words(videos, run, f"tokenizer={other}", "loss.codebook_smoothing=0.5"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/generator/loss"] for row in rows if "train/generator/loss" in row]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)
