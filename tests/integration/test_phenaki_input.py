"""What people train Phenaki on and ask it for: clips and pictures of every length, odd codes, odd requests."""

from __future__ import annotations

import json
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
    """A model of clips of five frames, two to a code. Read only."""
    return made_once(shared, "phenaki", lambda folder: succeed(*words(videos, folder)))


def refusal(*given: object) -> str:
    refused = quintet(*given)
    assert refused.code == 2
    return error_line(refused.errors)


def frames_in(folder: Path) -> dict[str, int]:
    return {
        path.name: read_header(path).frames for path in sorted(folder.glob("*.*")) if path.suffix in (".mp4", ".gif")
    }


def described(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


# --- asking -------------------------------------------------------------------------------------------------------


def test_a_text_becomes_videos_a_filmstrip_and_a_list(run: Path, tmp_path: Path) -> None:
    succeed("sample", run, "--text", "a red/ball: moves", "--num", 2, "--out", tmp_path / "out")
    names = [f"{number:03d}-a-red-ball-moves.{kind}" for number in range(2) for kind in ("gif", "mp4")]
    assert frames_in(tmp_path / "out") == dict.fromkeys(names, 5)
    rows = described(tmp_path / "out")
    assert {str(row["file"]) for row in rows} == {*names, "filmstrip.png"}
    assert {row["text"] for row in rows[1:]} == {"a red/ball: moves"}
    # Again: nothing is written over, and the same seed makes the same.
    succeed("sample", run, "--text", "a red/ball: moves", "--num", 2, "--out", tmp_path / "out")
    first, second = (read_video(tmp_path / "out" / f"000-a-red-ball-moves{again}.mp4") for again in ("", "-2"))
    assert np.array_equal(first, second)


def test_lengths_scenes_stills_and_a_clip_to_go_on_from(run: Path, tmp_path: Path) -> None:
    succeed("sample", run, "--text", "x", "--num", 1, "--frames", 11, "--out", tmp_path / "long", "sample.overlap=3")
    assert set(frames_in(tmp_path / "long").values()) == {11}

    (tmp_path / "scenes.txt").write_text("a red ball\n\na blue star\n", encoding="utf-8")
    asked = ("sample", run, "--scenes", tmp_path / "scenes.txt", "--num", 2)
    succeed(*asked, "--out", tmp_path / "scenes", "sample.overlap=3")
    assert list(frames_in(tmp_path / "scenes").values()) == [5 + 2] * 4
    assert described(tmp_path / "scenes")[1]["scenes"] == ["a red ball", "a blue star"]
    succeed(*asked, "--frames", 4, "--out", tmp_path / "short scenes")
    assert set(frames_in(tmp_path / "short scenes").values()) == {8}

    succeed("sample", run, "--images", "--text", "x", "--num", 3, "--out", tmp_path / "stills")
    pictures = {path.name for path in (tmp_path / "stills").glob("*.png")}
    assert pictures == {"grid.png", *(f"{number:03d}-x.png" for number in range(3))}
    assert not frames_in(tmp_path / "stills")

    write_film(tmp_path / "clip.mp4", counted(3))
    succeed("sample", run, "--prime", tmp_path / "clip.mp4", "--text", "x", "--num", 2, "--out", tmp_path / "on")
    assert set(frames_in(tmp_path / "on").values()) == {3 + 5 - 1}
    begun = read_video(tmp_path / "on" / "000-x.mp4")
    # The golden model draws noise; the start is the clip.
    assert abs(int(begun[0].mean()) - int(counted(3)[0].mean())) < 12
    Image.fromarray(counted(1)[0]).save(tmp_path / "still.png")
    succeed("sample", run, "--prime", tmp_path / "still.png", "--text", "x", "--num", 1, "--out", tmp_path / "moved")
    assert set(frames_in(tmp_path / "moved").values()) == {5}


def test_a_clip_longer_than_the_model_is_gone_on_from_at_its_end(run: Path, tmp_path: Path) -> None:
    write_video(counted(30), tmp_path / "clip.webp")
    asked = ("sample", run, "--prime", tmp_path / "clip.webp", "--text", "x", "--num", 1)
    told = succeed(*asked, "--out", tmp_path / "out")
    assert "of the 30 frames of" in told.errors
    assert "the last 3 are used" in told.errors
    begun = read_video(tmp_path / "out" / "000-x.mp4")
    assert abs(int(begun[2].mean()) - int(counted(30)[29].mean())) < 12
    assert "nothing would be left to make" in refusal(*asked, "--frames", 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--text", "x", "--frames", 4), "--frames=4 is not 1 and a multiple of 2"),
        (("--text", "x", "--frames", 4), "the nearest that are: 3 and 5"),
        (("--scenes", "empty.txt"), "is empty; write one scene on each line"),
        (("--scenes", "missing.txt"), "missing.txt cannot be read"),
        (("--scenes", "empty.txt", "--text", "x"), "leave --text and --images out"),
        (("--text", "x", "--prime", "missing.mp4"), "missing.mp4: cannot be opened"),
        (("--text", "x", "--prime", "empty.txt"), "empty.txt: empty file"),
        (("--images", "--frames", 5, "--text", "x"), "leave --prime and --frames out"),
        (("--text", "x", "--seconds", 2), "recipe phenaki takes no --seconds"),
    ],
)
def test_requests_that_cannot_be(given: tuple[object, ...], said: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    there = [tmp_path / str(word) if str(word).endswith((".txt", ".mp4")) else word for word in given]
    assert said in refusal("sample", run, *there, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_recipes_take_no_scenes(tmp_path: Path) -> None:
    muse = GOLDEN / "muse-format-1" / "hub"
    for option in (("--scenes", tmp_path / "x.txt"), ("--prime", tmp_path / "x.mp4"), ("--frames", 5), ("--images",)):
        assert f"recipe muse takes no {option[0]}" in refusal("sample", muse, *option, "--out", tmp_path / "out")


# --- training -----------------------------------------------------------------------------------------------------


def test_clips_of_every_length_and_pictures_train_together(tmp_path: Path) -> None:
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
    # So does a tokenizer.
    own = ("train.steps=4", "eval.every=4", "sample.every=4", "checkpoint.every=4")
    succeed("train", "cvivit", data, "--out", tmp_path / "tokenizer", *TINY_CVIVIT, *own)
    assert list(json.loads((tmp_path / "tokenizer" / "data.json").read_text())["skipped"]) == ["damaged.mp4"]
    succeed("sample", tmp_path / "run", "--images", "--text", "a still", "--num", 1, "--out", tmp_path / "out")


def test_a_folder_of_pictures_alone_trains(tmp_path: Path) -> None:
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
    asked = ("sample", run, "--prime", tmp_path / "still.png", "--text", "x", "--out", tmp_path / "on")
    assert "single pictures: it cannot go on" in refusal(*asked)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("data.frames=4",), "data.frames=4 is not 1 and a multiple of 2"),
        (("data.frames=4",), "the nearest that are: 3 and 5"),
        (("data.frames=259",), "data.frames=259 is more than the tokenizer"),
        (("model.num_codes=64",), "model.num_codes=64, but the tokenizer"),
        (("model.grid=[3,4,4]",), "model.grid=(3, 4, 4), but the tokenizer"),
        (("model.low_res_grid=[2,2]", "model.low_res_num_codes=8"), "there is no such model of videos"),
        (("model.code_patch_size=[3,2,2]",), "one token of several moments"),
        (("model.code_patch_size=[1,3,2]",), "does not divide model.grid"),
        (
            ("loss.codebook_smoothing=0.5",),
            "loss.codebook_smoothing replaces label smoothing: set loss.label_smoothing=0",
        ),
        (("loss.codebook_smoothing=-1", "loss.label_smoothing=0"), "loss.codebook_smoothing"),
        (("model.text=word",), "choose bytes, words, classes, vectors, none, or hf:PATH_OR_NAME"),
        (("sample.later_steps=0",), "sample.later_steps"),
        (("sample.texts=[]",), "give at least one caption"),
        (("tokenizer_hash=x0123",), "tokenizer_hash=x0123, but the tokenizer"),
    ],
)
def test_trainings_that_cannot_be(keys: tuple[str, ...], said: str, videos: Path, tmp_path: Path) -> None:
    assert said in refusal(*words(videos, tmp_path / "run", *keys))
    assert not (tmp_path / "run").exists()


def test_weights_on_codes_of_another_tokenizer_are_refused(run: Path, videos: Path, tmp_path: Path) -> None:
    keys = ("--preset", "debug", "model.image_size=16", "model.dim=16", "model.head_dim=8", "model.codebook_size=32")
    other = tmp_path / "other"
    succeed("train", "cvivit", videos, "--out", other, *keys, "train.steps=1", "loss.discriminator=false")
    refused = refusal(*words(videos, tmp_path / "run", "--init", run, f"tokenizer={other}"))
    assert "stands on another tokenizer" in refused


def test_words_and_shared_targets_from_training_to_samples(videos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = (
        "model.text=words",
        "model.text_length=8",
        "loss.codebook_smoothing=0.5",
        "loss.label_smoothing=0",
        "loss.frame_autoregressive=true",
    )
    said = succeed(*words(videos, run, *keys, "sample.later_steps=1")).errors
    assert "captions have more than 7 words and are cut (model.text_length), for one: 'a " in said
    asked = ("sample", run, "--text", "a word that nobody knows, and more than there is room for")
    said = succeed(*asked, "--num", 1, "--out", tmp_path / "out").errors
    assert "warning: prompt truncated to 7 words (model.text_length)" in said
    assert frames_in(tmp_path / "out")


def test_targets_are_not_shared_among_levels(videos: Path, tmp_path: Path) -> None:
    keys = ("--preset", "debug", "model.image_size=16", "model.dim=16", "model.head_dim=8", "model.codebook_size=32")
    other = tmp_path / "other"
    levels = ("model.num_quantizers=2", "train.steps=1", "loss.discriminator=false")
    succeed("train", "cvivit", videos, "--out", other, *keys, *levels)
    asked = (f"tokenizer={other}", "loss.codebook_smoothing=0.5", "loss.label_smoothing=0")
    assert "loss.codebook_smoothing needs a tokenizer with one code per position" in refusal(
        *words(videos, tmp_path / "run", *asked)
    )
