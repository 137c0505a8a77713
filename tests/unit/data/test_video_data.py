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
    for number, image in enumerate(counted(frames)):
        Image.fromarray(image).save(folder / f"{number}.png")


def source(folder: Path, train: bool = True, **keys: Any) -> VideoFolder:
    config = VideoDataConfig(path=str(folder), validation_fraction=0.0, **{"frames": 9, **keys})
    splits = video_folder_splits(config, (24, 32))
    result = splits.train if train else splits.validation
    assert isinstance(result, VideoFolder)
    return result


def loaded(result: VideoFolder, item: int = 0, epoch: int = 0) -> dict[str, Any]:
    return result.load(item, ItemRNG(0, [epoch], [item]))


def frames_of(loaded: dict[str, Any]) -> list[int]:
    return places_of(loaded["videos"].permute(1, 2, 3, 0).numpy())


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One video of thirty frames, with a caption."""
    folder = tmp_path_factory.mktemp("long")
    write_film(folder / "film.mp4", counted(30))
    (folder / "film.txt").write_text("it gets lighter")
    return folder


def test_an_item_is_uint8_channels_first_with_its_caption(long: Path) -> None:
    item = loaded(source(long))
    assert item.keys() == {"videos", "texts"}
    assert (item["videos"].dtype, item["videos"].shape) == (torch.uint8, (3, 9, 24, 32))
    assert item["texts"] == "it gets lighter"


@pytest.mark.parametrize("memory", [0, 1])
def test_in_training_clips_start_anywhere_and_cover_all_frames(long: Path, memory: int) -> None:
    result = source(long, memory_megabytes=memory)
    clips = [frames_of(loaded(result, epoch=epoch)) for epoch in range(60)]
    assert all(clip == list(range(clip[0], clip[0] + 9)) for clip in clips)
    assert {index for clip in clips for index in clip} == set(range(30))
    assert frames_of(loaded(result, epoch=3)) == clips[3]


def test_strides_and_rates(long: Path) -> None:
    assert np.diff(frames_of(loaded(source(long, stride=3)))).tolist() == [3] * 8
    assert np.diff(frames_of(loaded(source(long, fps=5.0)))).tolist() == [2] * 8
    with pytest.raises(UsageError, match=r"data.fps=5 and data.stride=2 contradict"):
        validate(VideoDataConfig, {"fps": 5, "stride": 2})


def test_outside_training_nothing_is_random(long: Path) -> None:
    result = source(long, train=False, flip=True, random_crop=True)
    first, second = loaded(result, epoch=0), loaded(result, epoch=1)
    assert torch.equal(first["videos"], second["videos"])
    assert frames_of(first) == list(range(11, 20))


def test_caching_changes_no_pixel(long: Path) -> None:
    cached, read = source(long, memory_megabytes=100), source(long, memory_megabytes=0)
    for epoch in range(4):
        assert torch.equal(loaded(cached, epoch=epoch)["videos"], loaded(read, epoch=epoch)["videos"])
    assert cached._cached
    assert not read._cached


def results(result: VideoFolder, epochs: int) -> list[str | list[int]]:
    """The frames, or the reason why there are none, of some clips."""

    def read(epoch: int) -> str | list[int]:
        try:
            return frames_of(loaded(result, epoch=epoch))
        except UnreadableItem as problem:
            return str(problem)

    return [read(epoch) for epoch in range(epochs)]


@pytest.mark.parametrize(("frames", "readable"), [(30, False), (60, True)])
def test_a_damaged_file_is_read_in_the_same_way_whatever_is_cached(tmp_path: Path, frames: int, readable: bool) -> None:
    path = write_film(tmp_path / "film.mp4", counted(frames), g="5", sc_threshold="0")
    content = bytearray(path.read_bytes())
    begin, end = content.index(b"mdat") + 4, content.index(b"moov")
    damaged = end - (end - begin) // 4  # the last quarter of the frames
    content[damaged:end] = bytes(end - damaged)
    path.write_bytes(content)
    found = {memory: results(source(tmp_path, memory_megabytes=memory), 12) for memory in (0, 1, 100)}
    assert found[0] == found[1] == found[100]
    # A short file is judged as a whole, a long one clip by clip.
    assert any(isinstance(clip, list) for clip in found[0]) == readable


def test_all_frames_are_cropped_and_mirrored_in_the_same_way(tmp_path: Path) -> None:
    clip = np.zeros((4, 24, 96, 3), np.uint8)
    clip[..., 0] = np.linspace(0, 250, 96)  # encodes the column
    clip[:, 0, 0, 1] = np.arange(4) * 50  # so that no frame equals the one before
    write_video(clip, tmp_path / "wide.webp")
    result = source(tmp_path, flip=True, random_crop=True)
    edges = set()
    for epoch in range(12):
        reds = loaded(result, epoch=epoch)["videos"][0, :, 12].int()
        assert (reds == reds[0]).all()
        edges.add((int(reds[0, 0]), int(reds[0, -1])))
    assert len(edges) > 8
    assert {left < right for left, right in edges} == {True, False}


def test_a_short_file_yields_a_short_clip_and_a_mask(tmp_path: Path) -> None:
    for name, frames in (("a", 1), ("b", 6), ("c", 12)):
        write_video(counted(frames), tmp_path / f"{name}.webp")
    result = source(tmp_path)
    items = [loaded(result, item) for item in range(3)]
    assert [item["videos"].shape[1] for item in items] == [1, 6, 9]
    batch = pad_clips(items)
    assert batch["videos"].shape == (3, 3, 9, 24, 32)
    assert batch["mask"].sum(1).tolist() == [1, 6, 9]
    assert batch["mask"][1].tolist() == [True] * 6 + [False] * 3
    # Real frames are unchanged, and padding repeats the last frame.
    for row, item in enumerate(items):
        count = item["videos"].shape[1]
        assert torch.equal(batch["videos"][row, :, :count], item["videos"])
        assert (batch["videos"][row, :, count:] == item["videos"][:, -1:]).all()
    assert pad_clips(items[:2], frames=9)["mask"].shape == (2, 9)


def test_a_folder_of_numbered_images_is_a_clip(tmp_path: Path) -> None:
    write_frames(tmp_path / "walk" / "one.v2", 5)
    write_frames(tmp_path / "run" / "two", 7)
    write_video(counted(3), tmp_path / "run" / "three.webp")
    result = source(tmp_path)
    names = {result.name(item): item for item in range(len(result))}
    assert names.keys() == {"walk/one.v2", "run/two", "run/three.webp"}
    assert [loaded(result, names[name])["texts"] for name in ("walk/one.v2", "run/two")] == ["walk", "run"]
    assert frames_of(loaded(result, names["run/two"])) == list(range(7))
    (tmp_path / "walk" / "one.v2.txt").write_text("a walk in the park")
    assert "a walk in the park" in {entry.text for entry in source(tmp_path).entries}


def test_metadata_may_name_a_folder_of_images(tmp_path: Path) -> None:
    write_frames(tmp_path / "clips" / "a", 3)
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "clips/a", "text": "lighter"}')
    assert loaded(source(tmp_path))["texts"] == "lighter"


def test_images_that_are_not_a_sequence_are_ignored(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")  # in the root
    (tmp_path / "album").mkdir()
    for name in ("beach", "harbour"):
        Image.new("RGB", (8, 8)).save(tmp_path / "album" / f"{name}.png")
    with pytest.raises(UsageError, match="no usable file"):
        scan(tmp_path, EXTENSIONS, image_sequences=True)


def test_an_image_is_a_clip_of_one_frame(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_video(counted(5), tmp_path / "run" / "film.webp")
    image = Image.fromarray(counted(4)[3])
    for extension in ("png", "jpg", "bmp", "tiff"):
        image.save(tmp_path / "run" / f"poster1.{extension}")  # numbered, but beside a video
    result = source(tmp_path)
    lengths = {result.name(item): loaded(result, item)["videos"].shape[1] for item in range(len(result))}
    posters = {f"run/poster1.{extension}": 1 for extension in ("png", "jpg", "bmp", "tiff")}
    assert lengths == {"run/film.webp": 5, **posters}
    assert all(frames_of(loaded(result, item)) == [3] for item in range(len(result)) if "poster" in result.name(item))


def test_numbered_images_with_captions_are_not_a_video(tmp_path: Path) -> None:
    for folder in ("beside", "below", "film"):
        write_frames(tmp_path / folder, 3)
    (tmp_path / "beside" / "1.txt").write_text("grey")
    assert {result.file for result in source(tmp_path).entries} == {
        "below",
        "film",
        *(f"beside/{n}.png" for n in range(3)),
    }
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "below/2.png", "text": "lighter"}')
    found = {result.file: result.text for result in source(tmp_path).entries}
    assert found.keys() == {"film", *(f"{folder}/{n}.png" for folder in ("beside", "below") for n in range(3))}
    assert found["below/2.png"] == "lighter"


def test_a_linked_image_outside_the_data_is_not_followed(tmp_path: Path) -> None:
    write_frames(tmp_path / "data" / "clip", 3)
    write_video(counted(2), tmp_path / "data" / "good.webp")
    Image.new("RGB", (8, 8)).save(tmp_path / "private.png")
    (tmp_path / "data" / "clip" / "3.png").symlink_to(tmp_path / "private.png")
    found = scan(tmp_path / "data", EXTENSIONS, image_sequences=True)
    assert [entry.file for entry in found.entries] == ["good.webp"]
    assert found.skipped == [("clip", "3.png: a link that leads out of the folder; not followed")]


def test_a_folder_that_changes_is_noticed(tmp_path: Path) -> None:
    write_frames(tmp_path / "data" / "clip", 4)
    result = source(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    entries = scan(tmp_path / "copy", EXTENSIONS, image_sequences=True).entries
    assert fingerprint(tmp_path / "copy", entries) == fingerprint(tmp_path / "data", result.entries)
    loaded(result)
    (tmp_path / "data" / "clip" / "3.png").unlink()
    with pytest.raises(UnreadableItem, match="changed since the run began"):
        loaded(result)


def test_preprocessing_keys_differ(long: Path) -> None:
    ways = ({}, {"frames": 5}, {"stride": 2}, {"fps": 4.0}, {"flip": True}, {"random_crop": True})
    keys = [source(long, **keys).preprocessing_key for keys in ways] + [source(long, train=False).preprocessing_key]
    assert len(set(keys)) == len(keys)


def test_it_can_be_pickled(long: Path) -> None:
    result = source(long)
    before = loaded(result)["videos"]
    assert torch.equal(loaded(pickle.loads(pickle.dumps(result)))["videos"], before)
