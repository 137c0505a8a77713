"""The dataset `solids`: meshes, captions, splits and writing."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from quintet.errors import UsageError
from quintet.media.mesh import Mesh, canonical, clean, edge_counts, normalise, read_mesh
from quintet.synthetic.solids import CLASSES, draw_item, extrusion, lathe, make_solids, split_of

ITEMS = [draw_item(0, index) for index in range(600)]
CLEANED = [canonical(clean(normalise(item.mesh))) for item in ITEMS]


def read_rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]


def volume(mesh: Mesh) -> float:
    corners = mesh.vertices[mesh.faces]
    return float(np.einsum("ij,ij->i", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum()) / 6


def test_an_item_depends_only_on_seed_and_index(tmp_path: Path) -> None:
    make_solids(tmp_path / "few", num=3, seed=5)
    make_solids(tmp_path / "more", num=6, seed=5)
    make_solids(tmp_path / "other", num=3, seed=6)
    for index in range(3):
        name = f"meshes/{index:05d}.obj"
        assert (tmp_path / "few" / name).read_bytes() == (tmp_path / "more" / name).read_bytes()
        assert (tmp_path / "few" / name).read_bytes() != (tmp_path / "other" / name).read_bytes()
    assert read_rows(tmp_path / "few") == read_rows(tmp_path / "more")[:3]


def test_the_folder_matches_its_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "solids"
    make_solids(folder, num=4, seed=3)
    rows = read_rows(folder)
    assert [row["file_name"] for row in rows] == [f"meshes/0000{index}.obj" for index in range(4)]
    assert json.loads((folder / "dataset.json").read_text()) == {"name": "solids", "version": 1, "num": 4, "seed": 3}
    assert sorted(path.name for path in folder.iterdir()) == ["dataset.json", "meshes", "metadata.jsonl"]
    for index, row in enumerate(rows):
        item = draw_item(3, index)
        expected = canonical(clean(normalise(item.mesh)))
        mesh = read_mesh(folder / str(row["file_name"]))
        assert np.array_equal(mesh.faces, expected.faces)
        assert mesh.vertices == pytest.approx(expected.vertices, abs=1e-6)
        assert (row["text"], row["class"], row["proportions"]) == (item.caption, item.kind, item.proportions)
        assert row["split"] == split_of(item.caption)


def test_an_interrupted_folder_is_not_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def interrupt(source: Path, target: Path) -> None:
        if target.name == "metadata.jsonl":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr("quintet.common.files.os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_solids(tmp_path / "solids", num=2)
    assert not (tmp_path / "solids").exists()


def test_a_non_empty_folder_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        make_solids(tmp_path, num=1)
    with pytest.raises(UsageError, match="is a file"):
        make_solids(tmp_path / "mine.txt", num=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("key", "value"), [("num", 0), ("num", -1), ("seed", -1)])
def test_invalid_values_are_refused_before_anything_is_written(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"--{key} is {value}"):
        make_solids(tmp_path / "solids", **{key: value})
    assert not (tmp_path / "solids").exists()


def test_every_mesh_is_small_watertight_and_faces_outwards() -> None:
    assert {item.kind for item in ITEMS} == set(CLASSES)
    assert len(CLASSES) >= 10
    for item, mesh in zip(ITEMS, CLEANED, strict=True):
        assert 8 <= len(mesh.faces) <= 200, item.kind
        assert len(mesh.faces) == len(item.mesh.faces), f"nothing of a {item.kind} is lost at the size of a bin"
        assert (edge_counts(item.mesh.faces) == 2).all(), item.kind
        assert (edge_counts(mesh.faces) == 2).all(), item.kind
        assert volume(mesh) > 0.05, item.kind


def test_outlines_and_profiles_have_the_right_volume() -> None:
    corner = extrusion([(0, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2)], 0, 1)
    assert volume(corner) == pytest.approx(3)
    assert volume(lathe([(1, 0), (1, 2)], 4)) == pytest.approx(4)
    assert volume(lathe([(0, 0), (1, 1), (0, 2)], 4)) == pytest.approx(4 / 3)


def test_captions_name_the_class_and_the_proportions_of_the_row() -> None:
    every_word = {word for kind in CLASSES.values() for measure in kind.measures.values() for word in measure.words}
    for item in ITEMS:
        words = re.findall(r"[a-z]+", item.caption.removeprefix("low-poly"))
        assert item.kind in words, item.caption
        assert {word for word in words if word in every_word} == set(item.proportions.values()), item.caption


def test_the_bounding_box_matches_the_words() -> None:
    for item in ITEMS:
        width, height, depth = np.ptp(item.mesh.vertices, axis=0)
        ratios = {"height": height / np.sqrt(width * depth), "breadth": width / depth}
        for name, word in item.proportions.items():
            measure = CLASSES[item.kind].measures[name]
            assert measure.word(ratios[name]) == word
            assert not 0.75 < ratios[name] / measure.usual < 1.4, "nothing lies between the words"


def test_captions_are_varied_and_use_the_right_article() -> None:
    captions = [item.caption for item in ITEMS]
    assert len(set(captions)) > 0.5 * len(captions)
    wrong = re.compile(r"\ba [aeiou]|\ban [^aeiou]|\ba ((low|tall|wide|narrow) )*stairs|stairs.* is\b")
    assert not [caption for caption in captions if wrong.search(caption)]


def test_splits_share_no_caption_whatever_its_spelling() -> None:
    splits = Counter(split_of(item.caption) for item in ITEMS)
    assert set(splits) == {"train", "validation"}
    assert 0.05 < splits["validation"] / len(ITEMS) < 0.17
    caption = next(item.caption for item in ITEMS if split_of(item.caption) == "validation")
    assert split_of(f"  {caption.upper()}.") == "validation"


def test_every_class_and_word_is_frequent_in_training() -> None:
    trained = [item for item in ITEMS if split_of(item.caption) == "train"]
    kinds = Counter(item.kind for item in trained)
    assert min(kinds[kind] for kind in CLASSES) > 0.5 * len(trained) / len(CLASSES)
    words = Counter(word for item in trained for word in item.proportions.values())
    assert min(words.values()) > 60
