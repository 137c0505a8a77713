"""The dataset `motions` and its judge."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from quintet.errors import UsageError
from quintet.media.video import read_header, read_video
from quintet.synthetic.motions import (
    COLOURS,
    FRAMES,
    MOTIONS,
    RATE,
    SHAPES,
    WITHHELD_PAIRS,
    Clip,
    MotionRecord,
    caption_of,
    draw_item,
    draw_record,
    draw_scene,
    make_motions,
    render,
    split_of,
)
from quintet.synthetic.motions_judge import NOTHING, judge, match

ITEMS = [draw_item(0, index, 32) for index in range(24)]
OPPOSITES = {"left": "right", "right": "left", "up": "down", "down": "up", "grow": "shrink", "shrink": "grow"}


def words(count: int) -> list[tuple[str, MotionRecord]]:
    """Captions with the attributes of their clips, without rendering."""
    found = []
    for index in range(count):
        rng = np.random.default_rng([1, index])
        record = draw_record(rng)
        found.append((caption_of(rng, record), record))
    return found


def clip_of(shape: str, colour: str, motion: str, size: int = 32, seed: int = 0) -> Clip:
    record = MotionRecord(shape=shape, colour=colour, motion=motion)
    return render(draw_scene(np.random.default_rng(seed), record), size)


def read_rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def test_an_item_depends_only_on_seed_and_index(tmp_path: Path) -> None:
    make_motions(tmp_path / "few", num=2, size=32, seed=5)
    make_motions(tmp_path / "more", num=3, size=32, seed=5)
    assert read_rows(tmp_path / "few") == read_rows(tmp_path / "more")[:2]
    for index in range(2):
        name = f"videos/{index:05d}.webp"
        assert (tmp_path / "few" / name).read_bytes() == (tmp_path / "more" / name).read_bytes()
    assert draw_item(6, 0, 32).caption != draw_item(5, 0, 32).caption
    small, large = draw_item(5, 1, 32), draw_item(5, 1, 64)
    assert (small.caption, small.record) == (large.caption, large.record)


def test_the_folder_matches_its_metadata_exactly(tmp_path: Path) -> None:
    make_motions(tmp_path / "new", num=3, size=40, seed=2)
    about = {"name": "motions", "version": 1, "num": 3, "size": 40, "seed": 2}
    assert json.loads((tmp_path / "new" / "dataset.json").read_text()) == about
    for index, row in enumerate(read_rows(tmp_path / "new")):
        item = draw_item(2, index, 40)
        path = tmp_path / "new" / str(row["file_name"])
        assert np.array_equal(read_video(path), item.clip)
        assert read_header(path).rate == pytest.approx(RATE)
        assert (row["text"], row["motion"]) == (item.caption, item.record)
        assert row["split"] == split_of(item.caption, item.record)


@pytest.mark.parametrize(("key", "value"), [("num", 0), ("seed", -1), ("size", 31)])
def test_invalid_values_and_non_empty_folders_are_refused(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"--{key} is {value}"):
        make_motions(tmp_path / "new", **{key: value})  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        make_motions(tmp_path, num=1)


def test_clips_have_their_size_and_consecutive_frames_differ() -> None:
    """A format that merges equal frames would lose them."""
    for item in ITEMS:
        assert (item.clip.dtype, item.clip.shape) == (np.uint8, (FRAMES, 32, 32, 3))
        assert (np.abs(np.diff(item.clip.astype(int), axis=0)).max(axis=(1, 2, 3)) > 0).all()


def test_captions_are_true_and_varied() -> None:
    mentioned = {
        "left": ("left", "leftwards", "right to left"),
        "right": ("right", "rightwards", "left to right"),
        "up": ("up", "rises", "upwards", "climbs"),
        "down": ("down", "sinks", "downwards", "bottom"),
        "grow": ("grows", "bigger", "larger", "swells"),
        "shrink": ("shrinks", "smaller", "dwindles"),
        "bounce": ("bounces", "jumps back", "springs up again"),
    }
    drawn = words(400)
    for caption, record in drawn:
        assert record["colour"] in caption
        assert record["shape"] in caption
        assert any(word in caption for word in mentioned[record["motion"]]), caption
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|  ", caption), caption
    assert len({caption for caption, _ in drawn}) > 0.9 * len(drawn)
    for name, options in (("shape", SHAPES), ("colour", COLOURS), ("motion", MOTIONS)):
        assert {dict(record)[name] for _, record in drawn} == set(options)


def test_splits_share_no_caption_and_withheld_pairs_have_their_own() -> None:
    splits: dict[str, set[str]] = {}
    for caption, record in words(600):
        split = split_of(caption, record)
        splits.setdefault(caption, set()).add(split)
        assert ((record["shape"], record["motion"]) in WITHHELD_PAIRS) == (split == "withheld")
        assert split_of(f" {caption.upper()}.", record) == split
    assert all(len(found) == 1 for found in splits.values())
    counts = Counter(split for found in splits.values() for split in found)
    assert min(counts["validation"], counts["withheld"]) >= 25


def test_the_judge_recognises_rendered_clips() -> None:
    assert all(match(item.record, judge(item.clip))["everything"] for item in ITEMS)


@pytest.mark.parametrize("motion", MOTIONS)
def test_every_motion_is_recognised_and_its_reverse_is_another(motion: str) -> None:
    clip = clip_of("star", "blue", motion, 64)
    assert judge(clip).motion == motion
    assert judge(clip[::-1]).motion == OPPOSITES.get(motion, motion)


def test_the_judge_rejects_wrong_attributes() -> None:
    record = MotionRecord(shape="heart", colour="red", motion="right")
    right = {"colour": True, "shape": True, "motion": True, "everything": True}
    assert match(record, judge(clip_of("heart", "red", "right"))) == right
    for name, value in (("shape", "ring"), ("colour", "green"), ("motion", "up")):
        shown = judge(clip_of(**{**record, name: value}))
        assert match(record, shown) == {**right, name: False, "everything": False}


def test_a_static_clip_has_no_motion() -> None:
    clip = clip_of("circle", "yellow", "down")
    still = judge(np.repeat(clip[8:9], FRAMES, axis=0))
    assert (still.colour, still.shape, still.motion) == ("yellow", "circle", None)
    assert judge(clip[:1]).motion is None
    # Moving back and forth, sideways or up first, is not a bounce.
    assert judge(np.concatenate([clip[::-2], clip[::2]])).motion is None


def test_a_shape_in_few_frames_has_no_motion() -> None:
    clip = clip_of("cross", "black", "left")
    clip[:9] = clip[:9, :1, :1]
    found = judge(clip)
    assert (found.motion, found.colour, found.seen) == (None, "black", pytest.approx(8 / 17))
    assert judge(np.full((5, 32, 32, 3), 90, np.uint8)) == NOTHING
    with pytest.raises(ValueError, match="square uint8 clips"):
        judge(clip[:, :, :20])


def test_the_judge_tolerates_noise_and_blur() -> None:
    rng = np.random.default_rng(0)
    for item in ITEMS[:4]:
        noisy = np.clip(item.clip + rng.normal(0, 8, item.clip.shape), 0, 255).astype(np.uint8)
        assert match(item.record, judge(noisy))["everything"]
        soft = [np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(1))) for frame in item.clip]
        assert match(item.record, judge(np.stack(soft)))["everything"]
