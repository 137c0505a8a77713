"""Meshes in memory: bins, cleaning, canonical order, neighbours, decimation, writing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import trimesh

from quintet.errors import UnreadableItem, UsageError
from quintet.media import mesh as meshes
from quintet.media.mesh import (
    LIMIT,
    MAX_FACES_AN_EDGE,
    Mesh,
    canonical,
    clean,
    dequantise,
    edge_counts,
    face_adjacency,
    normalise,
    probe_mesh,
    quantise,
    read_mesh,
    write_mesh,
)


def from_trimesh(mesh: trimesh.Trimesh) -> Mesh:
    return Mesh(np.array(mesh.vertices, np.float64), np.array(mesh.faces, np.int64))


def sphere(subdivisions: int = 2) -> Mesh:
    return from_trimesh(trimesh.creation.icosphere(subdivisions=subdivisions))


def shuffled(mesh: Mesh, seed: int) -> Mesh:
    """The same mesh, its vertices and faces in another order and its faces rotated."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(mesh.vertices))
    ranks = np.argsort(order)
    faces = ranks[mesh.faces][rng.permutation(len(mesh.faces))]
    turns = (rng.integers(3, size=len(faces))[:, None] + np.arange(3)) % 3
    return Mesh(mesh.vertices[order], np.take_along_axis(faces, turns, axis=1))


def same(first: Mesh, second: Mesh) -> bool:
    return np.array_equal(first.vertices, second.vertices) and np.array_equal(first.faces, second.faces)


def test_bins_and_back() -> None:
    rng = np.random.default_rng(0)
    vertices = rng.uniform(-1, 1, (1000, 3))
    cells = quantise(vertices, 128)
    assert (cells.min(), cells.max()) == (0, 127)
    assert np.abs(dequantise(cells, 128) - vertices).max() <= 1 / 128 + 1e-7
    assert np.array_equal(quantise(dequantise(cells, 128), 128), cells)
    assert quantise(np.array([-5.0, -1.0, 1.0, 5.0]), 16).tolist() == [0, 0, 15, 15]


def test_zero_is_one_bin_whatever_the_rounding() -> None:
    around = np.array([0.0, -0.0, 1e-12, -1e-12, 0.5, 0.5 - 1e-12])
    assert quantise(around, 128).tolist() == [64, 64, 64, 64, 96, 96]


def test_normalising_centres_the_box_and_keeps_proportions() -> None:
    box = from_trimesh(trimesh.creation.box((1, 2, 4)))
    mesh = normalise(Mesh(box.vertices * 1000 + [5e4, -3, 7], box.faces))
    assert mesh.vertices.max(axis=0) == pytest.approx([LIMIT / 4, LIMIT / 2, LIMIT])
    assert mesh.vertices.min(axis=0) == pytest.approx([-LIMIT / 4, -LIMIT / 2, -LIMIT])


def test_cleaning_merges_and_drops() -> None:
    near = 1e-4
    vertices = np.array(
        [[0.1, 0.1, 0.1], [0.1 + near, 0.1, 0.1], [0.5, 0.1, 0.1], [0.1, 0.5, 0.1], [0.3, 0.1, 0.1], [9, 9, 9]]
    )
    faces = np.array([[0, 2, 3], [1, 2, 3], [3, 2, 0], [0, 1, 3], [0, 4, 2]])
    mesh = clean(Mesh(vertices, faces))
    assert (len(mesh.vertices), len(mesh.faces)) == (3, 1), "duplicate, thin and collinear faces are removed"
    assert mesh.vertices[:, 0].tolist() == pytest.approx([0.1 + near / 2, 0.5, 0.1]), "the mean of the merged vertices"
    assert same(clean(mesh), mesh)


def test_cleaning_a_triangle_soup_merges_it() -> None:
    closed = normalise(sphere())
    soup = Mesh(closed.vertices[closed.faces].reshape(-1, 3), np.arange(3 * len(closed.faces)).reshape(-1, 3))
    mesh = clean(soup)
    assert (len(mesh.vertices), len(mesh.faces)) == (162, 320)
    assert (edge_counts(mesh.faces) == 2).all()


def test_unused_vertices_change_nothing() -> None:
    vertices = np.array([[0.98, 0, 0], [0, 0.98, 0], [0, 0, 0.98], [np.nan, 0, 0], [7.0, 0, 0]])
    mesh = clean(Mesh(vertices, np.array([[0, 1, 2]])))
    assert sorted(mesh.vertices.max(axis=0)) == [0.98, 0.98, 0.98]
    assert clean(Mesh(vertices, np.empty((0, 3), np.int64))).vertices.shape == (0, 3)


@pytest.mark.parametrize("bins", [16, 128, None])
def test_canonical_order_is_one_for_all_orders(bins: int | None) -> None:
    mesh = normalise(sphere())
    if bins is not None:
        mesh = clean(mesh, bins)
    expected = canonical(mesh, bins)
    assert same(canonical(expected, bins), expected)
    for seed in range(5):
        assert same(canonical(shuffled(mesh, seed), bins), expected)


def test_canonical_order() -> None:
    mesh = canonical(clean(normalise(from_trimesh(trimesh.creation.torus(1, 0.4, 12, 8)))))
    keys = [tuple(cell) for cell in quantise(mesh.vertices)[:, ::-1].tolist()]
    assert keys == sorted(set(keys)), "by z, then y, then x"
    faces = mesh.faces.tolist()
    assert all(face[0] == min(face) for face in faces)
    assert faces == sorted(faces)
    before = clean(normalise(from_trimesh(trimesh.creation.torus(1, 0.4, 12, 8))))
    normals = [
        np.cross(each[:, 1] - each[:, 0], each[:, 2] - each[:, 0])
        for each in (before.vertices[before.faces], mesh.vertices[mesh.faces])
    ]
    ordered = [np.array(sorted(np.round(each, 9).tolist())) for each in normals]
    assert np.allclose(*ordered), "no normal changes"


def test_neighbours() -> None:
    mesh = sphere(1)
    pairs = face_adjacency(mesh.faces)
    assert pairs.shape == (2, 120)
    assert (pairs[0] < pairs[1]).all()
    corners = [set(face) for face in mesh.faces.tolist()]
    expected = {(a, b) for a in range(80) for b in range(a + 1, 80) if len(corners[a] & corners[b]) == 2}
    assert set(zip(*pairs.tolist(), strict=True)) == expected


def test_neighbours_on_odd_edges() -> None:
    book = np.array([[0, 1, page] for page in range(2, 6)])
    assert face_adjacency(book).shape == (2, 6), "each page with each other"
    assert face_adjacency(np.array([[0, 1, 2], [2, 1, 0]])).tolist() == [[0], [1]]
    assert face_adjacency(np.array([[0, 1, 2]])).shape == (2, 0)
    assert face_adjacency(np.empty((0, 3), np.int64)).shape == (2, 0)
    hostile = np.array([[0, 1, page] for page in range(2, 3002)])
    assert face_adjacency(hostile).shape[1] < 3000 * MAX_FACES_AN_EDGE
    quads = np.array([[0, 1, 2, 3], [3, 2, 4, 5]])
    assert face_adjacency(quads).tolist() == [[0], [1]]


def test_facts(tmp_path: Path) -> None:
    box = trimesh.creation.box()
    write_mesh(from_trimesh(box), tmp_path / "box.ply")
    write_mesh(Mesh(np.array(box.vertices), np.array(box.faces[1:])), tmp_path / "open.obj")
    pages = Mesh(
        np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [-1, 0, 0.0]]),
        np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4]]),
    )
    write_mesh(pages, tmp_path / "pages.glb")
    facts = probe_mesh(tmp_path / "box.ply")
    assert (facts.vertices, facts.faces, facts.format, facts.watertight) == (8, 12, "PLY", True)
    facts = probe_mesh(tmp_path / "open.obj")
    assert (facts.open_edges, facts.non_manifold_edges, facts.watertight) == (3, 0, False)
    facts = probe_mesh(tmp_path / "pages.glb")
    assert (facts.format, facts.non_manifold_edges, facts.watertight) == ("GLB", 1, False)


def test_too_many_faces_are_named_or_reduced(tmp_path: Path) -> None:
    path = write_mesh(sphere(4), tmp_path / "fine.ply")
    with pytest.raises(UnreadableItem, match=r"^5120 faces, more than 500 \(data.max_faces\)"):
        read_mesh(path, max_faces=500)
    mesh = read_mesh(path, max_faces=500, decimate=True)
    assert 250 < len(mesh.faces) <= 500
    assert np.linalg.norm(mesh.vertices, axis=1) == pytest.approx(LIMIT, abs=0.06), "still a sphere"
    assert same(canonical(mesh), mesh)
    assert len(read_mesh(path, max_faces=5120).faces) == 5120


def test_a_mesh_that_cannot_be_decimated_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_mesh(sphere(2), tmp_path / "sphere.obj")
    monkeypatch.setattr("fast_simplification.simplify", lambda vertices, faces, **_: (vertices, faces))
    with pytest.raises(UnreadableItem, match=r"^320 faces, and no fewer than 320 by decimation; 100 are allowed$"):
        read_mesh(path, max_faces=100, decimate=True)


def test_a_coarser_grid_merges_more(tmp_path: Path) -> None:
    path = write_mesh(sphere(3), tmp_path / "sphere.glb")
    counts = [len(read_mesh(path, bins=bins).faces) for bins in (8, 32, 512)]
    assert counts == sorted(counts)
    assert counts[0] < 500
    assert counts[-1] == 1280


@pytest.mark.parametrize("extension", [".glb", ".obj", ".ply"])
def test_a_written_mesh_is_read(tmp_path: Path, extension: str) -> None:
    mesh = canonical(clean(normalise(sphere())))
    path = write_mesh(mesh, tmp_path / "deep" / f"sphere{extension}")
    again = read_mesh(path)
    assert np.array_equal(again.faces, mesh.faces)
    assert again.vertices == pytest.approx(mesh.vertices, abs=1e-6)
    assert len(trimesh.load_mesh(path, process=False).vertices) == 162, "faces share their vertices in the file"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_mesh(sphere(1), tmp_path / "one.obj")
    before = path.read_bytes()

    def fail(source: Path, target: Path) -> None:
        raise OSError(28, os.strerror(28), str(target))

    monkeypatch.setattr(meshes.os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_mesh(sphere(2), path)
    assert [each.name for each in tmp_path.iterdir()] == ["one.obj"]
    assert path.read_bytes() == before


def test_a_format_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'.fbx' is not among .glb, .obj, .ply"):
        write_mesh(sphere(1), tmp_path / "one.fbx")
