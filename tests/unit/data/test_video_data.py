"""Folders of clips as training items, and batches of them."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from films import counted, places_of, write_film
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig, validate
from quintet.data.index.entry import fingerprint
from quintet.data.index.folder import scan
from quintet.data.video import VideoFolder, pad_clips, video_folder_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.media.video import EXTENSIONS
from quintet.media.video_writing import write_video


def write_frames(folder: Path, frames: int) -> None:
    folder.mkdir(parents=True)
    for number, picture in enumerate(counted(frames)):
        Image.fromarray(picture).save(folder / f"{number}.png")


def source(folder: Path, train: bool = True, **keys: Any) -> VideoFolder:
    config = VideoDataConfig(path=str(folder), validation_fraction=0.0, **{"frames": 9, **keys})
    splits = video_folder_splits(config, (24, 32))
    made = splits.train if train else splits.validation
    assert isinstance(made, VideoFolder)
    return made


def loaded(made: VideoFolder, item: int = 0, epoch: int = 0) -> dict[str, Any]:
    return made.load(item, ItemRNG(0, [epoch], [item]))


def frames_of(loaded: dict[str, Any]) -> list[int]:
    return places_of(loaded["videos"].permute(1, 2, 3, 0).numpy())


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One film of thirty frames, with a caption."""
    folder = tmp_path_factory.mktemp("long")
    write_film(folder / "film.mp4", counted(30))
    (folder / "film.txt").write_text("it gets lighter")
    return folder


def test_an_item_is_bytes_channels_first_with_its_caption(long: Path) -> None:
    item = loaded(source(long))
    assert item.keys() == {"videos", "texts"}
    assert (item["videos"].dtype, item["videos"].shape) == (torch.uint8, (3, 9, 24, 32))
    assert item["texts"] == "it gets lighter"


@pytest.mark.parametrize("memory", [0, 1])
def test_in_training_a_clip_begins_anywhere_and_nothing_is_left_out(long: Path, memory: int) -> None:
    made = source(long, memory_megabytes=memory)
    clips = [frames_of(loaded(made, epoch=epoch)) for epoch in range(60)]
    assert all(clip == list(range(clip[0], clip[0] + 9)) for clip in clips)
    assert {place for clip in clips for place in clip} == set(range(30))
    assert frames_of(loaded(made, epoch=3)) == clips[3]


def test_strides_and_rates(long: Path) -> None:
    assert np.diff(frames_of(loaded(source(long, stride=3)))).tolist() == [3] * 8
    assert np.diff(frames_of(loaded(source(long, fps=5.0)))).tolist() == [2] * 8
    with pytest.raises(UsageError, match=r"data.fps=5 and data.stride=2 contradict"):
        validate(VideoDataConfig, {"fps": 5, "stride": 2})


def test_outside_training_nothing_is_drawn(long: Path) -> None:
    made = source(long, train=False, flip=True, random_crop=True)
    first, second = loaded(made, epoch=0), loaded(made, epoch=1)
    assert torch.equal(first["videos"], second["videos"])
    assert frames_of(first) == list(range(11, 20))


def test_keeping_films_changes_no_pixel(long: Path) -> None:
    kept, read = source(long, memory_megabytes=100), source(long, memory_megabytes=0)
    for epoch in range(4):
        assert torch.equal(loaded(kept, epoch=epoch)["videos"], loaded(read, epoch=epoch)["videos"])
    assert kept._cached
    assert not read._cached


def test_all_frames_are_cropped_and_mirrored_alike(tmp_path: Path) -> None:
    clip = np.zeros((4, 24, 96, 3), np.uint8)
    clip[..., 0] = np.linspace(0, 250, 96)  # tells where a column is
    clip[:, 0, 0, 1] = np.arange(4) * 50  # so that no frame equals the one before
    write_video(clip, tmp_path / "wide.webp")
    made = source(tmp_path, flip=True, random_crop=True)
    edges = set()
    for epoch in range(12):
        reds = loaded(made, epoch=epoch)["videos"][0, :, 12].int()
        assert (reds == reds[0]).all()
        edges.add((int(reds[0, 0]), int(reds[0, -1])))
    assert len(edges) > 8
    assert {left < right for left, right in edges} == {True, False}


def test_a_short_file_gives_all_it_has_and_a_mask_tells(tmp_path: Path) -> None:
    for name, frames in (("a", 1), ("b", 6), ("c", 12)):
        write_video(counted(frames), tmp_path / f"{name}.webp")
    made = source(tmp_path)
    items = [loaded(made, item) for item in range(3)]
    assert [item["videos"].shape[1] for item in items] == [1, 6, 9]
    batch = pad_clips(items)
    assert batch["videos"].shape == (3, 3, 9, 24, 32)
    assert batch["mask"].sum(1).tolist() == [1, 6, 9]
    assert batch["mask"][1].tolist() == [True] * 6 + [False] * 3
    # What is there is as it was, and what is not there stands still.
    for row, item in enumerate(items):
        there = item["videos"].shape[1]
        assert torch.equal(batch["videos"][row, :, :there], item["videos"])
        assert (batch["videos"][row, :, there:] == item["videos"][:, -1:]).all()
    assert pad_clips(items[:2], frames=9)["mask"].shape == (2, 9)


def test_a_folder_of_pictures_is_a_clip_like_any_file(tmp_path: Path) -> None:
    write_frames(tmp_path / "walk" / "one.v2", 5)
    write_frames(tmp_path / "run" / "two", 7)
    write_video(counted(3), tmp_path / "run" / "three.webp")
    made = source(tmp_path)
    names = {made.name(item): item for item in range(len(made))}
    assert names.keys() == {"walk/one.v2", "run/two", "run/three.webp"}
    assert [loaded(made, names[name])["texts"] for name in ("walk/one.v2", "run/two")] == ["walk", "run"]
    assert frames_of(loaded(made, names["run/two"])) == list(range(7))
    (tmp_path / "walk" / "one.v2.txt").write_text("a walk in the park")
    assert "a walk in the park" in {entry.text for entry in source(tmp_path).entries}


def test_metadata_may_name_a_folder_of_pictures(tmp_path: Path) -> None:
    write_frames(tmp_path / "clips" / "a", 3)
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "clips/a", "text": "lighter"}')
    assert loaded(source(tmp_path))["texts"] == "lighter"


def test_pictures_that_are_no_film_are_none(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")  # in the root
    (tmp_path / "album").mkdir()
    for name in ("beach", "harbour"):
        Image.new("RGB", (8, 8)).save(tmp_path / "album" / f"{name}.png")
    with pytest.raises(UsageError, match="no usable file"):
        scan(tmp_path, EXTENSIONS, image_sequences=True)


def test_a_picture_is_a_clip_of_one_frame(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_video(counted(5), tmp_path / "run" / "film.webp")
    picture = Image.fromarray(counted(4)[3])
    for extension in ("png", "jpg", "bmp", "tiff"):
        picture.save(tmp_path / "run" / f"poster1.{extension}")  # numbered, but beside a film
    made = source(tmp_path)
    lengths = {made.name(item): loaded(made, item)["videos"].shape[1] for item in range(len(made))}
    posters = {f"run/poster1.{extension}": 1 for extension in ("png", "jpg", "bmp", "tiff")}
    assert lengths == {"run/film.webp": 5, **posters}
    assert all(frames_of(loaded(made, item)) == [3] for item in range(len(made)) if "poster" in made.name(item))


def test_numbered_pictures_of_which_captions_speak_are_no_film(tmp_path: Path) -> None:
    for folder in ("beside", "below", "film"):
        write_frames(tmp_path / folder, 3)
    (tmp_path / "beside" / "1.txt").write_text("grey")
    assert {made.file for made in source(tmp_path).entries} == {"below", "film", *(f"beside/{n}.png" for n in range(3))}
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "below/2.png", "text": "lighter"}')
    found = {made.file: made.text for made in source(tmp_path).entries}
    assert found.keys() == {"film", *(f"{folder}/{n}.png" for folder in ("beside", "below") for n in range(3))}
    assert found["below/2.png"] == "lighter"


def test_a_picture_that_leads_out_of_the_data_is_not_followed(tmp_path: Path) -> None:
    write_frames(tmp_path / "data" / "clip", 3)
    write_video(counted(2), tmp_path / "data" / "good.webp")
    Image.new("RGB", (8, 8)).save(tmp_path / "private.png")
    (tmp_path / "data" / "clip" / "3.png").symlink_to(tmp_path / "private.png")
    found = scan(tmp_path / "data", EXTENSIONS, image_sequences=True)
    assert [entry.file for entry in found.entries] == ["good.webp"]
    assert found.skipped == [("clip", "3.png: a link that leads out of the folder; not followed")]


def test_a_folder_that_changes_is_noticed(tmp_path: Path) -> None:
    write_frames(tmp_path / "data" / "clip", 4)
    made = source(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    entries = scan(tmp_path / "copy", EXTENSIONS, image_sequences=True).entries
    assert fingerprint(tmp_path / "copy", entries) == fingerprint(tmp_path / "data", made.entries)
    loaded(made)
    (tmp_path / "data" / "clip" / "3.png").unlink()
    with pytest.raises(UnreadableItem, match="changed since the run began"):
        loaded(made)


def test_what_codes_depend_on_is_told(long: Path) -> None:
    ways = ({}, {"frames": 5}, {"stride": 2}, {"fps": 4.0}, {"flip": True}, {"random_crop": True})
    told = [source(long, **keys).preprocessing_key for keys in ways] + [source(long, train=False).preprocessing_key]
    assert len(set(told)) == len(told)


def test_workers_can_hold_it(long: Path) -> None:
    made = source(long)
    before = loaded(made)["videos"]
    assert torch.equal(loaded(pickle.loads(pickle.dumps(made)))["videos"], before)
