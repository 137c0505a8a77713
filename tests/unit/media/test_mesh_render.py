"""Rendering of meshes: visibility, orientation, and invalid meshes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import trimesh

from quintet.media.mesh import Mesh
from quintet.media.mesh_render import BACK, SURFACE, contact_sheet, render


def box(low: tuple[float, float, float], high: tuple[float, float, float]) -> Mesh:
    cube = trimesh.creation.box(bounds=(low, high))
    return Mesh(np.array(cube.vertices), np.array(cube.faces))


def drawn(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    return (image < 250).any(axis=2)


def test_the_image_and_its_margin() -> None:
    image = render(box((-1, -1, -1), (1, 1, 1)), 64)
    assert (image.shape, image.dtype) == ((64, 64, 3), np.uint8)
    visible = drawn(image)
    assert visible[32, 32]
    assert not visible[:3].any()
    assert not visible[-3:].any()
    assert 0.4 < visible.mean() < 0.85


def test_up_is_up_and_right_is_right() -> None:
    # A large foot on the left, a small head above it on the right.
    mesh = box((-1, -1, -0.1), (0, 0, 0.1))
    head = box((0.5, 0.5, -0.1), (1, 1, 0.1))
    both_boxes = Mesh(np.concatenate([mesh.vertices, head.vertices]), np.concatenate([mesh.faces, head.faces + 8]))
    visible = drawn(render(both_boxes, 64, view=(0, 0)))
    assert visible[40:56, 8:24].all()
    assert visible[8:14, 50:56].all()
    assert not visible[8:24, 8:24].any()
    assert not visible[40:56, 40:56].any()
    from_behind = drawn(render(both_boxes, 64, view=(180, 0)))
    assert from_behind[40:56, 40:56].all()
    assert drawn(render(both_boxes, 64, view=(90, 0)))[:, 28:36].any()


def test_nearer_faces_hide_those_behind_also_where_they_cross() -> None:
    """Two crossing sheets, one seen from its back and so red: each hides the other on one side."""
    front = np.array([[-1, -1, 1], [1, -1, -1], [1, 1, -1], [-1, 1, 1.0]])
    other = front * (1, 1, -1)
    faces = np.array([[0, 1, 2], [0, 2, 3], [6, 5, 4], [7, 6, 4]])
    image = render(Mesh(np.concatenate([front, other]), faces), 64, view=(0, 0)).astype(float)
    left, right = image[20, 12], image[20, 52]
    assert (left / left.max())[2] == 1 or (right / right.max())[2] == 1
    blue = [each[2] > each[0] for each in (left, right)]
    assert blue == [True, False], (left, right, SURFACE, BACK)


def test_edges_lie_over_faces_but_not_over_what_hides_them() -> None:
    big, hidden = box((-1, -1, 0), (1, 1, 0.5)), box((-0.5, -0.5, -1), (0.5, 0.5, -0.6))
    alone = render(big, 128, view=(0, 0))
    both = render(
        Mesh(np.concatenate([big.vertices, hidden.vertices]), np.concatenate([big.faces, hidden.faces + 8])),
        128,
        view=(0, 0),
    )
    assert np.array_equal(alone, both)
    assert (alone.min(axis=2) < 90).any(), "the outline and the diagonal are dark"


def test_empty_and_invalid_meshes_are_empty_images() -> None:
    for mesh in (
        Mesh(np.empty((0, 3)), np.empty((0, 3), np.int64)),
        Mesh(np.full((3, 3), np.nan), np.array([[0, 1, 2]])),
        Mesh(np.zeros((3, 3)), np.array([[0, 1, 2]])),
    ):
        assert not drawn(render(mesh, 32)).any()
    half = Mesh(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [np.nan, 0, 0.0]]), np.array([[0, 1, 2], [0, 1, 3]]))
    assert drawn(render(half, 32)).any()


def test_a_sheet() -> None:
    cube = box((-1, -1, -1), (1, 1, 1))
    sheet = contact_sheet([cube] * 5, columns=3, size=32)
    assert sheet.shape == (2 * 34 + 2, 3 * 34 + 2, 3)
    assert drawn(sheet)[:34, -30:].any()
    assert not drawn(sheet)[36:, -34:].any()
