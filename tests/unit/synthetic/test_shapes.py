"""The dataset `shapes`: rendering, captions, splits and writing."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quintet.errors import UsageError
from quintet.synthetic.shapes import (
    BACKGROUND_CONTRAST,
    COLOURS,
    OBJECT_GAP,
    POSITIONS,
    SHAPES,
    WITHHELD_PAIRS,
    coverage,
    draw_item,
    draw_scene,
    gap_between,
    make_shapes,
    oklab,
    split_of,
)

SCENES = [draw_scene(0, index) for index in range(1500)]
RECORDS = [[one.record for one in objects] for objects, _, _ in SCENES]
CAPTIONS = [caption for _, _, caption in SCENES]
SPLITS = [split_of(caption, records) for caption, records in zip(CAPTIONS, RECORDS, strict=True)]


def read_rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def test_an_item_depends_only_on_seed_index_and_size(tmp_path: Path) -> None:
    make_shapes(tmp_path / "few", num=3, size=32, seed=5)
    make_shapes(tmp_path / "more", num=6, size=32, seed=5)
    make_shapes(tmp_path / "other", num=3, size=32, seed=6)
    for index in range(3):
        name = f"images/{index:05d}.png"
        assert (tmp_path / "few" / name).read_bytes() == (tmp_path / "more" / name).read_bytes()
        assert (tmp_path / "few" / name).read_bytes() != (tmp_path / "other" / name).read_bytes()
    assert read_rows(tmp_path / "few") == read_rows(tmp_path / "more")[:3]


def test_the_scene_is_the_same_at_every_size() -> None:
    small, large = draw_item(1, 2, 32), draw_item(1, 2, 128)
    assert (small.caption, small.objects) == (large.caption, large.objects)
    reduced = large.image.reshape(32, 4, 32, 4, 3).mean(axis=(1, 3))
    assert np.abs(reduced - small.image).mean() < 2.0


def test_the_folder_matches_its_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "shapes"
    make_shapes(folder, num=4, size=40, seed=3)
    rows = read_rows(folder)
    assert [row["file_name"] for row in rows] == [f"images/0000{index}.png" for index in range(4)]
    assert json.loads((folder / "dataset.json").read_text()) == {
        **{"name": "shapes", "version": 1},
        **{"num": 4, "size": 40, "seed": 3},
    }
    assert sorted(path.name for path in folder.iterdir()) == ["dataset.json", "images", "metadata.jsonl"]
    for index, row in enumerate(rows):
        item = draw_item(3, index, 40)
        with Image.open(folder / str(row["file_name"])) as picture:
            assert np.array_equal(np.asarray(picture), item.image)
        assert (row["text"], row["objects"]) == (item.caption, item.objects)
        assert row["split"] == split_of(item.caption, item.objects)


def test_an_interrupted_dataset_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def interrupt(source: Path, target: Path) -> None:
        if target.name == "metadata.jsonl":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("quintet.common.files.os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_shapes(tmp_path / "shapes", num=2)
    assert not [*tmp_path.iterdir()]


def test_a_non_empty_folder_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        make_shapes(tmp_path, num=1)
    with pytest.raises(UsageError, match="is a file"):
        make_shapes(tmp_path / "mine.txt", num=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize(("key", "value"), [("num", 0), ("num", -1), ("size", 31), ("seed", -1)])
def test_invalid_values_are_refused_before_anything_is_written(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"--{key} is {value}"):
        make_shapes(tmp_path / "shapes", **{key: value})
    assert not (tmp_path / "shapes").exists()


def test_captions_name_colour_shape_and_position_of_every_object() -> None:
    for records, caption in zip(RECORDS, CAPTIONS, strict=True):
        words = re.findall(r"[a-z]+", caption)
        for one in records:
            assert one["colour"] in words, caption
            assert one["shape"] in words or one["shape"] + "s" in words or one["shape"] + "es" in words, caption
            position = one["position"].replace("centre", "(centre|middle)")
            assert re.search(rf"(in|on|at) the {position}\b", caption), caption
        for colour in COLOURS:
            assert (colour in words) == any(one["colour"] == colour for one in records), caption


def test_captions_are_varied_and_use_the_right_article() -> None:
    assert len(set(CAPTIONS)) > 0.9 * len(CAPTIONS)
    assert not [caption for caption in CAPTIONS if re.search(r"\ban? (?<=a )[aeiou]|\ban [^aeiou]", caption)]
    twins = [caption for caption in CAPTIONS if re.match(r"two (small |large )?[a-z]+ [a-z]+s,", caption)]
    assert twins, "two objects alike are said in one breath"


def test_splits_share_no_caption_whatever_its_spelling() -> None:
    by_caption: dict[str, set[str]] = {}
    for caption, split in zip(CAPTIONS, SPLITS, strict=True):
        by_caption.setdefault(caption, set()).add(split)
    assert all(len(splits) == 1 for splits in by_caption.values())
    records = RECORDS[SPLITS.index("validation")]
    caption = CAPTIONS[SPLITS.index("validation")]
    assert split_of(f"  {caption.upper()}.", records) == "validation"


def test_withheld_pairs_are_only_in_their_split() -> None:
    for records, split in zip(RECORDS, SPLITS, strict=True):
        withheld = any((one["colour"], one["shape"]) in WITHHELD_PAIRS for one in records)
        assert withheld == (split == "withheld")
    fractions = {split: count / len(SPLITS) for split, count in Counter(SPLITS).items()}
    assert 0.08 < fractions["withheld"] < 0.125
    assert 0.07 < fractions["validation"] < 0.11


def test_every_word_is_frequent_in_training() -> None:
    trained = [one for records, split in zip(RECORDS, SPLITS, strict=True) if split == "train" for one in records]
    for key, names in (("colour", tuple(COLOURS)), ("shape", SHAPES), ("position", POSITIONS)):
        counts = Counter(dict(one)[key] for one in trained)
        assert set(counts) == set(names)
        assert min(counts.values()) > 0.6 * len(trained) / len(names)
    assert {(one["colour"], one["shape"]) for one in trained} & WITHHELD_PAIRS == set()


def test_two_objects_are_separate_and_as_frequent_as_configured() -> None:
    pairs = [objects for objects, _, _ in SCENES if len(objects) == 2]
    assert 0.36 < len(pairs) / len(SCENES) < 0.44
    assert min(gap_between(*objects) for objects in pairs[:200]) >= OBJECT_GAP


def test_objects_are_inside_the_image_at_their_position() -> None:
    for objects, _, _ in SCENES[:300]:
        for one in objects:
            mask = coverage(one.record["shape"], (one.x, one.y), one.radius, one.angle, 64)
            assert max(mask[0].max(), mask[-1].max(), mask[:, 0].max(), mask[:, -1].max()) == 0.0
            row, column = divmod(POSITIONS.index(one.record["position"]), 3)
            assert [int(place > 24) + int(place > 40) for place in (one.x, one.y)] == [column, row]


def test_backgrounds_vary_and_objects_stand_out() -> None:
    kinds = Counter(background.kind for _, background, _ in SCENES)
    assert (kinds["linear"] + kinds["radial"]) / len(SCENES) > 0.4
    for objects, background, _ in SCENES:
        ends = oklab([background.start, background.end])
        for one in objects:
            assert np.linalg.norm(ends - oklab(one.rgb), axis=1).min() >= BACKGROUND_CONTRAST


def test_named_colours_are_far_apart() -> None:
    colours = oklab(list(COLOURS.values()))
    distances = np.linalg.norm(colours[:, None] - colours, axis=-1) + np.eye(len(colours))
    assert distances.min() > 0.18


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mask_is_anti_aliased_and_scales_with_the_radius(shape: str) -> None:
    mask = coverage(shape, (32.0, 32.0), 12.0, 0.1, 64)
    doubled = coverage(shape, (32.0, 32.0), 12.0, 0.1, 128)
    assert set(np.unique(mask[(mask == 0) | (mask == 1)])) == {0.0, 1.0}
    assert ((mask > 0) & (mask < 1)).sum() > 20
    assert doubled.sum() / 4 == pytest.approx(mask.sum(), rel=0.01)
