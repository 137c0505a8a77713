"""Clips of a Python data set: the same items as those of a folder."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from films import counted, places_of
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.video import python_video_splits, video_folder_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.media.video import clip_tensor
from quintet.media.video_writing import write_video

SIZE = (48, 64)


def rng(item: int = 0, epoch: int = 0) -> ItemRNG:
    return ItemRNG(0, [epoch], [item])


def loaded(item: Any, *, train: bool = True, declared: Any = None, epoch: int = 0, **keys: Any) -> dict[str, Any]:
    result = python_video_splits([item], VideoDataConfig(**keys), SIZE, declared=declared)
    return (result.train if train else result.validation).load(0, rng(epoch=epoch))


CLIP = clip_tensor(counted(5))


@pytest.mark.parametrize(
    ("item", "declared"),
    [
        ({"videos": CLIP, "texts": "lighter"}, None),
        ({"video": CLIP, "caption": "lighter", "id": 7}, None),
        ((CLIP, "lighter"), None),
        (("lighter", CLIP.double() / 255), None),
        ((counted(5), "lighter"), None),
        (("lighter", CLIP), ("texts", "videos")),
    ],
    ids=["names", "aliases", "tuple", "floats", "numpy", "declared"],
)
def test_items_of_any_form(item: Any, declared: Any) -> None:
    result = loaded(item, declared=declared)
    assert result.keys() == {"videos", "texts"}
    assert result["texts"] == "lighter"
    assert torch.equal(result["videos"], CLIP)


def test_an_image_is_a_clip_of_one_frame() -> None:
    assert torch.equal(loaded((CLIP[:, 2], "one"))["videos"], CLIP[:, 2:3])
    assert torch.equal(loaded((counted(5)[2], "one"))["videos"], CLIP[:, 2:3])
    grey = loaded((torch.rand(1, 4, *SIZE), "grey"))["videos"]
    assert grey.shape == (3, 4, *SIZE)
    assert torch.equal(grey[0], grey[2])


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("keys", [{}, {"frames": 5, "stride": 2}, {"frames": 4, "flip": True}], ids=str)
def test_a_data_set_gives_the_items_that_a_folder_gives(tmp_path: Path, train: bool, keys: dict[str, Any]) -> None:
    clips = [(counted(frames), f"{frames} frames") for frames in (3, 22)]
    for clip, text in clips:
        write_video(clip, tmp_path / f"{text[:2].strip():0>2}.webp")
        (tmp_path / f"{text[:2].strip():0>2}.txt").write_text(text)
    config = VideoDataConfig(path=str(tmp_path), validation_fraction=0, **keys)
    folder, python = video_folder_splits(config, (20, 20)), python_video_splits(clips, config, (20, 20))
    for item in range(2):
        for epoch in range(3):
            ours, theirs = (
                (result.train if train else result.validation).load(item, rng(item, epoch))
                for result in (python, folder)
            )
            assert ours["texts"] == theirs["texts"]
            assert torch.equal(ours["videos"], theirs["videos"])


def test_a_long_clip_starts_at_a_random_frame() -> None:
    item = (counted(30), "long")
    starts = {places_of(loaded(item, epoch=epoch)["videos"].permute(1, 2, 3, 0).numpy())[0] for epoch in range(40)}
    assert len(starts) > 8
    assert max(starts) <= 13


@pytest.mark.parametrize(
    ("video", "reason"),
    [
        (torch.full((3, 4, 48, 64), torch.nan), "not finite"),
        (torch.zeros(2, 4, 48, 64), "a clip is a tensor 3 x frames"),
        (np.zeros((4, 48, 64, 3)), "array of bytes"),
        (torch.zeros(3, 0, 48, 64), "a clip is"),
        (torch.zeros(48), r"shape \(48,\) for a video"),
        ("film.mp4", "str for a video"),
    ],
)
def test_unusable_clips_are_unreadable_items(video: Any, reason: str) -> None:
    with pytest.raises(UnreadableItem, match=reason):
        loaded({"videos": video, "texts": "odd"})


def test_fps_needs_time_stamps() -> None:
    with pytest.raises(UsageError, match=r"data\.fps needs time stamps.*data\.stride"):
        loaded((CLIP, "lighter"), fps=8.0)
    with pytest.raises(UsageError, match="no 'videos'"):
        loaded({"texts": "nothing"})


def test_it_can_be_pickled() -> None:
    result = python_video_splits([(CLIP, "lighter"), (Image.new("RGB", (2, 2)), "x")], VideoDataConfig(), SIZE)
    again = pickle.loads(pickle.dumps(result.train))
    assert torch.equal(again.load(0, rng())["videos"], result.train.load(0, rng())["videos"])
