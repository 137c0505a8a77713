"""Video files of all kinds: unusable files are named by the command, unusual ones are used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from films import counted, places_of, write_film
from helpers import quintet, succeed
from quintet.common.rng import ItemRNG
from quintet.config import VideoDataConfig
from quintet.data.video import VideoFolder, video_folder_splits
from quintet.errors import UnreadableItem
from quintet.media.video_writing import write_video

FORMATS = ("mp4", "mov", "webm", "avi", "gif", "webp")


# --- files of all kinds -------------------------------------------------------------------------------------------


def write(path: Path, frames: int) -> None:
    if path.suffix in (".gif", ".webp"):
        write_video(counted(frames), path, 10)
    else:
        write_film(path, counted(frames))


def add_unusable(folder: Path) -> dict[str, str]:
    """Files that no training can use, and the expected reason of each."""
    reasons = {}
    for extension in FORMATS:
        (folder / f"empty.{extension}").touch()
        reasons[f"empty.{extension}"] = "empty file"
        (folder / f"words.{extension}").write_text("this is not a video\n" * 20)
        Image.new("RGB", (40, 40), (200, 10, 10)).save(folder / f"image.{extension}", format="PNG")
        reasons |= {f"{name}.{extension}": "not a video" for name in ("words", "image")}
        cut = folder / f"cut.{extension}"
        write(cut, 20)
        cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        reasons[cut.name] = "truncated"
    write_film(folder / "nothing.avi", counted(0))
    reasons["nothing.avi"] = "holds no frame"
    broken = folder / "broken-folder"
    broken.mkdir()
    for number in range(3):
        (broken / f"{number}.png").write_bytes(b"not an image")
    reasons["broken-folder"] = "0.png: not a picture"
    return reasons


def add_unusual(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Unusual files that are used; the frames of a clip of each, and its displayed size."""
    shown = {}
    for extension in FORMATS:
        write(folder / f"one.{extension}", 1)
        write(folder / f"short.{extension}", 5)
        shown |= {f"one.{extension}": (1, 48, 64), f"short.{extension}": (5, 48, 64)}
    write_film(folder / "phone.mp4", counted(20), turn=90)
    write_film(folder / "uneven.mp4", counted(12), times=[0, 10, 20, 60, 61, 62, 63, 64, 65, 66, 100, 150])
    write_film(folder / "odd.mkv", counted(9, 47, 63), codec="ffv1")
    shown |= {"phone.mp4": (9, 64, 48), "uneven.mp4": (9, 48, 64), "odd.mkv": (9, 47, 63)}
    clear = np.concatenate([counted(4), np.full((4, 48, 64, 1), 255, np.uint8)], axis=3)
    write_film(folder / "clear.mov", clear, codec="qtrle", pixels="argb")
    shown["clear.mov"] = (4, 48, 64)
    shutil.copy(folder / "short.gif", folder / "called.mp4")
    shown["called.mp4"] = (5, 48, 64)
    (folder / "frames").mkdir()
    for number, image in enumerate(counted(6)):
        Image.fromarray(image).save(folder / "frames" / f"{number:03d}.jpg")
    shown["frames"] = (6, 48, 64)
    return shown


def source_of(folder: Path) -> VideoFolder:
    config = VideoDataConfig(path=str(folder), frames=9, validation_fraction=0.0)
    train = video_folder_splits(config, (24, 32)).train
    assert isinstance(train, VideoFolder)
    return train


# --- the check and the training -----------------------------------------------------------------------------------


def test_unusable_files_are_named_and_unusual_ones_are_used(tmp_path: Path) -> None:
    unusable, unusual = add_unusable(tmp_path), add_unusual(tmp_path)

    checked = json.loads(succeed("data", "check", tmp_path, "--json").output)

    assert (checked["medium"], checked["usable"]) == ("video", len(unusual))
    skipped = {each["file"]: each["reason"] for each in checked["skipped"]}
    assert skipped.keys() == unusable.keys()
    for name, part in unusable.items():
        assert part in skipped[name], name
        assert "\n" not in skipped[name]


def test_the_check_reports_sizes_rates_and_short_files(tmp_path: Path) -> None:
    unusual = add_unusual(tmp_path)

    outcome = succeed("data", "check", tmp_path)

    heights = sorted(height for _, height, _ in unusual.values())
    assert f"height      {heights[0]} / {heights[len(heights) // 2]} / {heights[-1]}" in outcome.output
    assert "variable 1" in outcome.output
    assert "folder of images 1" in outcome.output
    assert f"{len(unusual) - 1} files have fewer than 17 frames (data.frames) and are still used" in outcome.output
    assert f"next: quintet train cvivit {tmp_path}" in outcome.errors + outcome.output


def test_training_and_the_check_agree_on_usable_files(tmp_path: Path) -> None:
    unusable, unusual = add_unusable(tmp_path), add_unusual(tmp_path)
    source = source_of(tmp_path)

    frames, reasons = {}, {}
    for item in range(len(source)):
        try:
            videos = source.load(item, ItemRNG(0, [0], [item]))["videos"]
        except UnreadableItem as problem:
            reasons[source.name(item)] = str(problem)
            continue
        assert videos.shape[::2] == (3, 24)
        indices = places_of(videos.permute(1, 2, 3, 0).numpy())
        assert indices == list(range(indices[0], indices[0] + len(indices))), source.name(item)
        frames[source.name(item)] = len(indices)

    assert frames == {name: count for name, (count, _, _) in unusual.items()}
    # Empty files are skipped before anything is read.
    assert reasons.keys() == {name for name in unusable if "empty" not in name}
    for name, reason in reasons.items():
        assert unusable[name] in reason, name


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_animations_are_videos_and_stills_are_images(tmp_path: Path, kind: str) -> None:
    for name in ("animated", "still"):
        (tmp_path / name).mkdir()
        for number in range(2):
            write_video(counted(3 if name == "animated" else 1), tmp_path / name / f"{number}.{kind}")
    media = [
        json.loads(succeed("data", "check", tmp_path / name, "--json").output)["medium"]
        for name in ("animated", "still")
    ]
    assert media == ["video", "image"]


def test_images_are_frames_with_medium_video(tmp_path: Path) -> None:
    for clip in ("one", "two"):
        (tmp_path / clip).mkdir()
        for number, image in enumerate(counted(4)):
            Image.fromarray(image).save(tmp_path / clip / f"{number}.png")
    reports = {
        words: json.loads(succeed("data", "check", tmp_path, "--json", *words).output)
        for words in ((), ("--medium", "video"))
    }
    assert {words: (each["medium"], each["usable"]) for words, each in reports.items()} == {
        (): ("image", 8),
        ("--medium", "video"): ("video", 2),
    }


def test_synthetic_clips_are_made_and_checked(tmp_path: Path) -> None:
    result = succeed("data", "make", "motions", tmp_path / "data", "--num", 6, "--size", 32)
    assert "next: quintet train cvivit" in result.output
    outcome = succeed("data", "check", tmp_path / "data")
    assert "6 video files found, 6 usable" in outcome.output
    assert "frames      17 / 17 / 17" in outcome.output
    assert "8 fps 6" in outcome.output


def test_only_unusable_files_are_an_error(tmp_path: Path) -> None:
    unusable = add_unusable(tmp_path)

    outcome = quintet("data", "check", tmp_path)

    assert outcome.code == 1
    assert f"{len(unusable)} video files found, 0 usable" in outcome.output
    assert "next:" not in outcome.output + outcome.errors
