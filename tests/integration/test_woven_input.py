"""Odd mesh files and point clouds for woven meshes: the commands use them without loss, or name them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from contract.cases import TINY_MESH_TRANSFORMER
from helpers import error_line, quintet, succeed
from quintet.media.mesh import Mesh, read_mesh, write_mesh
from quintet.media.mesh_measures import is_watertight

BINS = 64
WOVEN = (*TINY_MESH_TRANSFORMER, "tokenizer=woven:64", "model.text=none", "train.steps=4", "eval.every=4")
BRIEF = ("sample.every=4", "checkpoint.every=4", "data.validation_fraction=0", "data.augment=false")
TETRAHEDRON = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], float)
SIDES = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [0, 3, 2]])
COMPONENTS = 1000


def thousand_components() -> Mesh:
    """Tetrahedra on a lattice, which at 64 bins a side have four corners each, and no two of them touch."""
    shifts = np.stack(np.unravel_index(np.arange(COMPONENTS), (10, 10, 10)), axis=1) * 3.0
    vertices = (TETRAHEDRON * 1.5 + shifts[:, None]).reshape(-1, 3)
    return Mesh(vertices, np.concatenate([SIDES + 4 * number for number in range(COMPONENTS)]))


def fan(spokes: int, height: float) -> tuple[np.ndarray, np.ndarray]:
    """The side of a cone, open at its base, with the tip at 0."""
    angles = np.arange(spokes) * 2 * np.pi / spokes
    rim = np.stack([np.cos(angles), np.full(spokes, height), np.sin(angles)], axis=1)
    numbers = np.arange(spokes)
    return np.concatenate([np.zeros((1, 3)), rim]), np.stack([0 * numbers, numbers + 1, (numbers + 1) % spokes + 1], 1)


def odd_meshes() -> dict[str, Mesh]:
    cone, sides = fan(12, 1.0)
    other, _ = fan(12, -1.0)
    hourglass = Mesh(np.concatenate([cone, other]), np.concatenate([sides, sides[:, ::-1] + len(cone)]))
    pages = np.array([[0, 0, 0], [0, 4, 0], *([np.cos(each), 2, np.sin(each)] for each in range(5))])
    needle = Mesh(np.concatenate([TETRAHEDRON, [[1e-9, 0, 0.5], [0.5, 0, 0]]]), np.concatenate([SIDES, [[0, 3, 4]]]))
    line = np.concatenate([TETRAHEDRON, [[0.25, 0, 0], [0.5, 0, 0]]])
    return {
        "thousand-components.obj": thousand_components(),
        "open.obj": Mesh(cone, sides),
        "two-fans-at-one-vertex.obj": hourglass,
        "five-faces-at-one-edge.obj": Mesh(pages, np.array([[0, 1, each] for each in range(2, 7)])),
        "sliver-in-one-row-of-bins.obj": needle,
        "sliver-of-three-points-on-a-line.obj": Mesh(line, np.concatenate([SIDES, [[0, 4, 5], [1, 4, 5]]])),
        "only-slivers.obj": Mesh(line, np.array([[0, 4, 5], [1, 4, 5]])),
        "inside-out.obj": Mesh(TETRAHEDRON, SIDES[:, ::-1]),
        "each-face-turned.obj": Mesh(TETRAHEDRON, np.where(np.arange(4)[:, None] % 2, SIDES, SIDES[:, ::-1])),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, mesh in odd_meshes().items():
        write_mesh(mesh, tmp_path / "data" / name)
    return tmp_path / "data"


def faces_of(mesh: Mesh) -> list[list[list[float]]]:
    """The corners of the faces, in any order of the faces, with their winding."""
    corners = np.round(mesh.vertices[mesh.faces], 6)
    turned = [np.roll(face, -min(range(3), key=lambda at: face[at].tolist()), axis=0) for face in corners]
    return sorted(face.tolist() for face in turned)


def test_odd_meshes_come_back_with_every_face(folder: Path, tmp_path: Path) -> None:
    checked = json.loads(succeed("data", "check", folder, "--json").output)
    assert [(each["file"], "area" in each["reason"]) for each in checked["skipped"]] == [("only-slivers.obj", True)]
    succeed("encode", "woven:64", folder, "--out", tmp_path / "codes")
    rows = [json.loads(line) for line in (tmp_path / "codes" / "items.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows if "skipped" in row] == ["only-slivers.obj"]
    succeed("eval", "woven:64", "--data", folder, "--out", tmp_path / "eval.json")
    metrics = json.loads((tmp_path / "eval.json").read_text())
    assert metrics["coordinate_exact"] == 1
    assert metrics["watertight"] == metrics["watertight_originals"]
    succeed("decode", "woven:64", tmp_path / "codes", "--out", tmp_path / "decoded")
    decoded = sorted((tmp_path / "decoded").rglob("*.glb"))
    assert len(decoded) == len(odd_meshes()) - 1


def test_odd_meshes_are_trained_on_and_the_unusable_are_named(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = ("data.max_faces=4000", "model.max_faces=8", "loss.window_faces=8")
    succeed("train", "mesh-transformer", folder, "--out", run, *WOVEN, *BRIEF, *keys)
    record = json.loads((run / "data.json").read_text())
    assert set(record["train"]) == set(odd_meshes()) - {"only-slivers.obj"}
    succeed("sample", run, "--num", 4, "--out", tmp_path / "closed", "sample.max_faces=30", "sample.holes=never")
    for path in (tmp_path / "closed").glob("*.obj"):
        assert is_watertight(read_mesh(path))
    # Without windows a mesh of too many tokens is left out and named.
    out = tmp_path / "full"
    succeed("train", "mesh-transformer", folder, "--out", out, *WOVEN, *BRIEF, "data.max_faces=4000")
    reasons = json.loads((out / "data.json").read_text())["skipped"]
    assert reasons["thousand-components.obj"] == "14000 tokens, more than the 1040 of model.max_faces=256"
    assert "area" in reasons["only-slivers.obj"]


def test_clouds_that_are_hardly_usable_or_very_large(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = ("model.max_faces=8", "loss.window_faces=8", "model.condition=points", "eval.num_generated=2")
    succeed("train", "mesh-transformer", folder, "--out", run, *WOVEN, *BRIEF, *keys)
    succeed("eval", run, "--out", tmp_path / "eval.json")
    metrics = json.loads((tmp_path / "eval.json").read_text())
    measured = ("valid", "watertight", "manifold", "self_intersecting", "components", "tokens_per_face", "coverage")
    assert {*measured, "mmd", "one_nna", "chamfer", "points_normal_consistency", "points_chamfer"} <= metrics.keys()
    assert metrics["manifold"] == 1
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.random((400, 3)), np.full((400, 3), np.nan)], axis=1)
    rows[::2, 1] = np.nan
    rows[1, 0] = np.inf
    np.savetxt(tmp_path / "half.xyz", rows)
    outcome = succeed("sample", run, "--points", tmp_path / "half.xyz", "--num", 1, "--out", tmp_path / "half")
    assert "half.xyz has no normals" in outcome.errors
    header = "ply\nformat binary_little_endian 1.0\nelement vertex 10000000\n"
    header += "".join(f"property float {name}\n" for name in ("x", "y", "z", "nx", "ny", "nz")) + "end_header\n"
    large = tmp_path / "large.ply"
    block = rng.random((100_000, 6), np.float32).tobytes()
    with large.open("wb") as file:
        file.write(header.encode())
        for _ in range(100):
            file.write(block)
    tracemalloc.start()
    succeed("sample", run, "--points", large, "--num", 1, "--out", tmp_path / "large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    large.unlink()
    assert peak < 100e6  # the file has 240 MB
    np.savetxt(tmp_path / "one.xyz", rows[1:2, :3])
    outcome = quintet("sample", run, "--points", tmp_path / "one.xyz", "--out", tmp_path / "one")
    assert outcome.code == 2
    assert "0 of its 1 points have finite coordinates" in error_line(outcome.errors)
