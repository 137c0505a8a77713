"""Folders of meshes as training items, their check, and both on the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh

from quintet.cli import call
from quintet.common.rng import ItemRNG
from quintet.config import DataConfig
from quintet.data import check
from quintet.data.check import check_folder
from quintet.data.index.folder import scan
from quintet.data.mesh import MeshFolder, augmented, mesh_folder_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.media.mesh import EXTENSIONS, LIMIT, Mesh, canonical, clean, normalise, quantise
from quintet.synthetic.solids import draw_item, make_solids


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "solids"
    make_solids(path, num=30, seed=1)
    return path


def source(folder: Path, **options: Any) -> MeshFolder:
    return MeshFolder(folder, scan(folder, EXTENSIONS).entries, **options)


def rng(epoch: int = 0, item: int = 0) -> ItemRNG:
    return ItemRNG(7, [epoch], [item])


def test_an_item(folder: Path) -> None:
    items = source(folder, train=False)
    drawn = draw_item(1, 4)
    item = items.load(4, rng())
    assert (len(items), items.name(4)) == (30, "meshes/00004.obj")
    assert items.metadata(4) == {"texts": item["texts"]} == {"texts": drawn.caption}
    assert (item["vertices"].dtype, item["faces"].dtype) == (torch.float32, torch.int64)
    assert torch.equal(item["faces"], torch.from_numpy(canonical(clean(normalise(drawn.mesh))).faces))
    assert item["vertices"].abs().max() == pytest.approx(LIMIT)


def test_augmentation_is_random_per_item_and_epoch(folder: Path) -> None:
    items, plain = source(folder), source(folder, augment=False)
    first = items.load(2, rng(0, 2))
    assert torch.equal(items.load(2, rng(0, 2))["vertices"], first["vertices"])
    assert not torch.equal(items.load(2, rng(1, 2))["vertices"], first["vertices"])
    assert torch.equal(plain.load(2, rng(0, 2))["vertices"], plain.load(2, rng(1, 2))["vertices"])


def test_augmented_meshes_stay_in_the_box_and_in_order(folder: Path) -> None:
    items = source(folder)
    ratios, shifts = [], []
    for item in range(10):
        mesh = items.mesh(item)
        for epoch in range(12):
            moved = augmented(mesh, rng(epoch, item))
            assert np.abs(moved.vertices).max() <= LIMIT + 1e-9
            again = canonical(clean(moved))
            assert np.array_equal(again.faces, moved.faces)
            assert np.array_equal(again.vertices, moved.vertices)
            cells = quantise(moved.vertices)
            assert len(np.unique(cells, axis=0)) == len(cells)
            ratios.append(np.ptp(moved.vertices, axis=0) / np.ptp(mesh.vertices, axis=0))
            shifts.append(moved.vertices.max(axis=0) + moved.vertices.min(axis=0))
    assert 0.749 <= np.min(ratios) < 0.8
    assert 1.15 < np.max(ratios) <= 1.251
    assert 0.12 < np.abs(shifts).max() <= 0.201


def test_a_cached_mesh_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items, uncached = source(folder, memory=2**20), source(folder)
    expected = [items.load(0, rng())["vertices"], uncached.load(0, rng())["vertices"]]
    monkeypatch.setattr("quintet.media.mesh.read_mesh", lambda *_, **__: pytest.fail("read again"))
    assert torch.equal(items.load(0, rng())["vertices"], expected[0])
    assert torch.equal(*expected)
    with pytest.raises(pytest.fail.Exception):
        uncached.load(0, rng())


def test_too_many_faces_are_an_unreadable_item(folder: Path) -> None:
    items = source(folder, max_faces=20)
    large = next(item for item in range(30) if len(draw_item(1, item).mesh.faces) > 20)
    with pytest.raises(UnreadableItem, match=r"faces, more than 20 \(data.max_faces\)"):
        items.load(large, rng())
    reduced = source(folder, max_faces=20, decimate=True).load(large, rng())
    assert 0 < len(reduced["faces"]) <= 20


def test_a_mesh_flattened_by_augmentation_is_an_unreadable_item() -> None:
    thin = Mesh(np.array([[-0.98, 0.0, 0], [0.98, 0.0, 0], [0, 0.0157, 0]]), np.array([[0, 1, 2]]))
    outcomes = []
    for epoch in range(40):
        try:
            outcomes.append(len(augmented(thin, rng(epoch)).faces))
        except UnreadableItem as problem:
            outcomes.append(str(problem))
    assert set(outcomes) == {1, "no face of it has an area at 128 bins a side once it is augmented"}


def test_a_dataset_can_be_pickled(folder: Path) -> None:
    items = pickle.loads(pickle.dumps(source(folder)))
    assert torch.equal(items.load(1, rng())["vertices"], source(folder).load(1, rng())["vertices"])


def test_a_folder_is_split_by_its_rows(folder: Path) -> None:
    splits = mesh_folder_splits(DataConfig(path=str(folder)), 128, None)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    expected = {row["file_name"] for row in rows if row["split"] == "validation"}
    assert expected
    assert {splits.validation.name(item) for item in range(len(splits.validation))} == expected
    assert len(splits.train) + len(splits.validation) == 30
    assert splits.about["captions_from"] == "metadata.jsonl"
    assert isinstance(splits.train, MeshFolder)
    assert isinstance(splits.validation, MeshFolder)
    assert (splits.train.train, splits.validation.train) == (True, False)
    with pytest.raises(UsageError, match="Python data set"):
        mesh_folder_splits(DataConfig(), 128, None)


# --- the check --------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """One of each: watertight, open, non-manifold, large, empty, points only, not a mesh."""
    box = trimesh.creation.box()
    box.export(tmp_path / "box.stl")
    trimesh.Trimesh(box.vertices, box.faces[2:], process=False).export(tmp_path / "open.off")
    (tmp_path / "pages.obj").write_text("v 0 0 0\nv 0 1 0\nv 1 0 0\nv 0 0 1\nv -1 0 0\nf 1 2 3\nf 1 2 4\nf 1 2 5\n")
    trimesh.creation.icosphere(subdivisions=3).export(tmp_path / "sphere.glb")
    (tmp_path / "empty.obj").touch()
    (tmp_path / "points.obj").write_text("v 0 0 0\nv 1 0 0\n")
    (tmp_path / "text.ply").write_text("hello")
    (tmp_path / "box.txt").write_text("a box")
    return tmp_path


def test_the_check_of_meshes(mixed: Path) -> None:
    report = check_folder(mixed)
    assert (report.medium, report.found, report.usable) == ("mesh", 7, 4)
    assert report.numbers["faces"] == check.Range(3, 11, 1280)
    assert report.words["format"] == {"STL": 1, "OFF": 1, "OBJ": 1, "GLB": 1}
    assert report.words["surface"] == {"watertight": 2, "open": 1, "non-manifold": 1}
    assert dict(report.skipped) == {
        "empty.obj": "empty file",
        "points.obj": "2 points and no faces in it",
        "text.ply": "not a mesh: the content is of no known mesh format",
    }
    assert report.notes[-2:] == [
        "1 meshes have more than 800 faces (data.max_faces) and are decimated (data.decimate=false skips them): "
        "sphere.glb (1280)",
        "1 meshes have edges with more than two faces: pages.obj",
    ]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "solids")
    call(["data", "make", "solids", folder, "--num", "6", "--seed", "2"])
    output = capsys.readouterr().out
    assert f"6 items written: {folder}" in output
    assert f"next: quintet train mesh-autoencoder {folder}" in output
    call(["data", "check", folder])
    output = capsys.readouterr().out
    assert "6 mesh files found, 6 usable" in output
    assert "surface     watertight 6" in output
    assert output.rstrip().endswith(f"next: quintet train mesh-autoencoder {folder}")
    with pytest.raises(UsageError, match="--size is for images"):
        call(["data", "make", "solids", str(tmp_path / "other"), "--size", "64"])
