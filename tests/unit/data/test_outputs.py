"""Folders that quintet wrote are not data of the folder that they are in."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from helpers import TINY, copied, error_line, quintet, succeed, tree
from quintet.common.outputs import OUTPUT_MARKER, mark_output
from quintet.data.check import check_folder
from quintet.data.index.entry import Scan, fingerprint
from quintet.data.index.listing import list_media
from quintet.data.index.shards import scan_shards
from quintet.media import audio, image, mesh, video

pytestmark = pytest.mark.fault("run-in-data")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "cats").mkdir(parents=True)
    for number in range(8):
        Image.new("RGB", (32, 32), (number * 20, 0, 0)).save(folder / "cats" / f"{number}.png")
    return folder


def add_run(folder: Path, *files: str) -> None:
    """A run with samples, as `quintet train` writes it."""
    sections = "".join(f"{name}:\n  x: 1\n" for name in ("data", "train", "optim", "checkpoint"))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"recipe: vqgan\n{sections}")
    for file in files:
        path = folder / "samples" / "step-00000004" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def files_of(found: Scan) -> list[str]:
    return [entry.file for entry in found.entries]


def test_a_run_inside_its_data_resumes_and_its_samples_are_not_trained_on(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    succeed("train", "vqgan", ".", *TINY)
    run = photos / "runs" / "vqgan-1"
    assert list(run.glob("samples/*/*.png"))
    resumed = quintet("resume", run, "train.steps=16")
    assert resumed.code == 0, resumed.errors
    assert "runs/vqgan-1 (a run)" in resumed.errors
    succeed("sample", run, "--num", 2, "--out", "out")
    succeed("train", "vqgan", ".", *TINY)
    names = [json.loads((photos / "runs" / f"vqgan-{number}" / "data.json").read_text()) for number in (1, 2)]
    assert names[0]["fingerprint"] == names[1]["fingerprint"]
    assert {file.split("/")[0] for file in names[1]["train"] + names[1]["validation"]} == {"cats"}


@pytest.mark.parametrize(
    ("extensions", "file", "image_sequences"),
    [
        (image.EXTENSIONS, "a.png", False),
        (mesh.EXTENSIONS, "a.obj", False),
        (audio.EXTENSIONS, "a.wav", False),
        (video.EXTENSIONS, "a.mp4", True),
        (video.EXTENSIONS, "clip/001.png", True),
    ],
)
def test_runs_hold_no_data_of_any_medium(
    tmp_path: Path, extensions: frozenset[str], file: str, image_sequences: bool
) -> None:
    own = tmp_path / file
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(b"x")
    before = list_media(tmp_path, extensions, image_sequences=image_sequences)
    add_run(tmp_path / "deep" / "runs" / "one", file)
    after = list_media(tmp_path, extensions, image_sequences=image_sequences)
    assert files_of(after) == files_of(before)
    assert fingerprint(tmp_path, after.entries) == fingerprint(tmp_path, before.entries)
    assert after.left_out == [("deep/runs/one", "a run")]


def test_a_run_beside_shards_does_not_replace_them_as_data(photos: Path, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    succeed("data", "shard", photos, shards, "--items", 4)
    names = files_of(list_media(shards, image.EXTENSIONS))
    add_run(shards / "runs" / "one", "a.png", "b.tar")
    for _ in range(2):
        found = list_media(shards, image.EXTENSIONS)
        assert files_of(found) == names
        assert found.left_out == [("runs/one", "a run")]
        assert files_of(scan_shards(shards, image.EXTENSIONS)) == names
        (shards / "index.safetensors").unlink(missing_ok=True)  # the same without an index
    assert "runs/one: a run" in succeed("data", "check", shards).output


def test_samples_and_marked_folders_are_left_out_and_named(photos: Path) -> None:
    before = files_of(list_media(photos, image.EXTENSIONS))
    for name in ("out", "decoded"):
        shutil.copytree(photos / "cats", photos / name)
    (photos / "out" / "samples.jsonl").write_text(json.dumps({"file": "0.png", "model": "runs/a"}) + "\n")
    mark_output(photos / "decoded")
    found = list_media(photos, image.EXTENSIONS)
    assert files_of(found) == before
    assert found.left_out == [("decoded", "an output of quintet"), ("out", "samples of a model")]
    report = check_folder(photos)
    assert report.to_json()["left_out"][1] == {"folder": "out", "reason": "samples of a model"}
    assert any(line.endswith("out: samples of a model") for line in report.lines())


def test_decoded_files_and_exported_pages_are_left_out(photos: Path, trained: Path) -> None:
    before = files_of(list_media(photos, image.EXTENSIONS))
    succeed("encode", trained, photos, "--out", photos / "codes")
    succeed("decode", trained, photos / "codes", "--out", photos / "decoded")
    succeed("view", trained, "--export", photos / "page")
    assert list((photos / "decoded").glob("*.png"))
    assert list((photos / "page").rglob("*.png"))
    assert files_of(list_media(photos, image.EXTENSIONS)) == before


def test_a_folder_of_samples_is_data_if_the_user_names_it(photos: Path) -> None:
    (photos / "cats" / "samples.jsonl").write_text(json.dumps({"file": "0.png", "model": "runs/a"}) + "\n")
    (photos / "cats" / OUTPUT_MARKER).touch()
    assert len(list_media(photos / "cats", image.EXTENSIONS).entries) == 8


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "recipe: soup\ndata: {}\n"),
        ("config.yaml", "train: true\n"),
        ("samples.jsonl", '{"file": "0.png", "text": "a cat"}\n'),
        ("samples.jsonl", "{"),
    ],
)
def test_files_of_the_user_with_these_names_mark_nothing(photos: Path, file: str, content: str) -> None:
    (photos / "cats" / file).write_text(content)
    found = list_media(photos, image.EXTENSIONS)
    assert (len(found.entries), found.left_out) == (8, [])


def test_a_pipe_with_the_name_of_a_marker_does_not_block(photos: Path) -> None:
    os.mkfifo(photos / "cats" / "config.yaml")
    assert len(list_media(photos, image.EXTENSIONS).entries) == 8


def test_a_run_is_refused_as_data(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path / "run")
    before = tree(run)
    for words in (("train", "vqgan", run, *TINY, "--out", tmp_path / "new"), ("data", "check", run)):
        outcome = quintet(*words)
        assert outcome.code == 2
        assert error_line(outcome.errors) == (
            f"error: {run} is a run, not data; name the folder that contains your files"
        )
    assert tree(run) == before
