"""Files of quads stay quads with `corners=4`, and other files are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trimesh

from quintet.errors import UnreadableItem
from quintet.media.mesh import Mesh, canonical, clean, edge_counts, quantise, read_mesh

CORNERS = [(x, y, z) for x in (0, 2) for y in (0, 1) for z in (0, 3)]
QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
MIXED = [*QUADS[:5], (1, 5, 7), (1, 7, 3)]


def write(path: Path, faces: list[tuple[int, ...]]) -> Path:
    if path.suffix == ".obj":
        lines = [f"v {x} {y} {z}" for x, y, z in CORNERS]
        lines += ["f " + " ".join(str(each + 1) for each in face) for face in faces]
    else:
        lines = ["OFF", f"{len(CORNERS)} {len(faces)} 0"]
        if path.suffix == ".ply":
            lines = ["ply", "format ascii 1.0", f"element vertex {len(CORNERS)}"]
            lines += [f"property float {axis}" for axis in "xyz"]
            lines += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
        lines += [f"{x} {y} {z}" for x, y, z in CORNERS]
        lines += [f"{len(face)} " + " ".join(map(str, face)) for face in faces]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("extension", ["obj", "ply", "off"])
def test_a_box_of_quads(tmp_path: Path, extension: str) -> None:
    path = write(tmp_path / f"box.{extension}", QUADS)
    mesh = read_mesh(path, corners=4)
    assert mesh.faces.shape == (6, 4)
    assert (edge_counts(mesh.faces) == 2).all()
    # Canonical: each face starts at its lowest vertex, faces are sorted, and the winding is the same.
    assert (mesh.faces[:, 0] == mesh.faces.min(axis=1)).all()
    assert mesh.faces.tolist() == sorted(mesh.faces.tolist())
    diagonals = mesh.vertices[mesh.faces[:, 2:]] - mesh.vertices[mesh.faces[:, :2]]
    outwards = np.cross(diagonals[:, 0], diagonals[:, 1])
    assert ((outwards * mesh.vertices[mesh.faces].mean(axis=1)).sum(axis=1) > 0).all()
    assert read_mesh(path).faces.shape == (12, 3)


def test_other_faces_are_refused(tmp_path: Path) -> None:
    for extension in ("obj", "ply", "off"):
        with pytest.raises(UnreadableItem, match=r"its faces have 3 and 4 vertices; model\.vertices_per_face=4"):
            read_mesh(write(tmp_path / f"mixed.{extension}", MIXED), corners=4)
    for extension in ("stl", "glb"):
        path = tmp_path / f"box.{extension}"
        path.write_bytes(trimesh.creation.box().export(file_type=extension))
        with pytest.raises(UnreadableItem, match="its faces have 3 vertices"):
            read_mesh(path, corners=4)
    with pytest.raises(UnreadableItem, match="8 points and no faces in it"):
        read_mesh(write(tmp_path / "points.obj", []), corners=4)


def test_too_many_quads_are_not_decimated(tmp_path: Path) -> None:
    with pytest.raises(UnreadableItem, match=r"^6 faces, more than 5 \(data\.max_faces\)$"):
        read_mesh(write(tmp_path / "box.obj", QUADS), corners=4, max_faces=5, decimate=True)


def test_degenerate_quads_are_dropped() -> None:
    vertices = np.array([(0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0.5, 0, 0)]) * 1.9 - 0.95
    faces = [(0, 1, 2, 3), (2, 3, 0, 1), (0, 1, 2, 1), (0, 1, 2, 2), (0, 4, 1, 2)]
    mesh = canonical(clean(Mesh(vertices, np.array(faces))))
    assert mesh.faces.tolist() == [[0, 1, 3, 2]]
    assert quantise(mesh.vertices).shape == (4, 3)
