"""Manifolds, parts and crossing faces of shapes whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from quintet.media.mesh import Mesh
from quintet.media.mesh_measures import as_triangles, compare_sets, is_watertight
from quintet.media.mesh_topology import component_labels, count_components, has_crossing_faces, is_manifold

VERTICES = np.array([[x, y, z] for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
QUADS = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
CUBE = Mesh(VERTICES, as_triangles(QUADS))
OPEN = Mesh(VERTICES, CUBE.faces[2:])
EMPTY = Mesh(VERTICES, np.empty((0, 3), np.int64))


def joined(*meshes: Mesh) -> Mesh:
    """The meshes as one, with separate vertices."""
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    faces = [mesh.faces + start for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(np.concatenate([mesh.vertices for mesh in meshes]), np.concatenate(faces))


def moved(mesh: Mesh, *by: float) -> Mesh:
    return Mesh(mesh.vertices + np.array(by), mesh.faces)


def cubes_on_one_vertex() -> Mesh:
    two = joined(CUBE, moved(CUBE, 1, 1, 1))
    return Mesh(two.vertices, np.where(two.faces == 8, 7, two.faces))  # the last corner of one, the first of the other


def three_faces_on_an_edge() -> Mesh:
    fan = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    return Mesh(fan, np.array([[0, 1, 2], [0, 1, 3], [0, 1, 4]]))


@pytest.mark.parametrize(
    ("mesh", "watertight", "manifold", "parts"),
    [
        (CUBE, True, True, 1),
        (OPEN, False, True, 1),
        (joined(CUBE, moved(CUBE, 3, 0, 0)), True, True, 2),
        (cubes_on_one_vertex(), True, False, 1),
        (three_faces_on_an_edge(), False, False, 1),
        (Mesh(VERTICES, QUADS), True, True, 1),
        (EMPTY, False, False, 0),
    ],
    ids=["cube", "open cube", "two cubes", "cubes on one vertex", "three faces on an edge", "quads", "empty"],
)
def test_a_shape_is_what_it_is(mesh: Mesh, watertight: bool, manifold: bool, parts: int) -> None:
    assert (is_watertight(mesh), is_manifold(mesh), count_components(mesh)) == (watertight, manifold, parts)


def test_components_of_a_long_chain_are_one() -> None:
    chain = np.stack([np.arange(1, 5000), np.arange(4999)], axis=1)
    shuffled = np.random.default_rng(0).permutation(5000)
    assert len(np.unique(component_labels(5000, shuffled[chain]))) == 1


LYING = np.array([[0.0, 0, 0], [4, 0, 0], [0, 4, 0]])


@pytest.mark.parametrize(
    ("other", "crosses"),
    [
        ([[1, 1, -1], [1, 1, 1], [5, 5, 1]], True),  # through the inside
        ([[1, 1, 0], [1, 1, 1], [2, 1, 1]], False),  # stands on it
        ([[9, 9, -1], [9, 9, 1], [8, 9, 1]], False),  # passes beside it
        ([[1, 1, 1], [2, 1, 1], [1, 2, 1]], False),  # above it
        ([[1, 1, 0], [2, 1, 0], [1, 2, 0]], False),  # in its plane
        ([[0, 0, 0], [1, 1, 1], [2, 2, -1]], True),  # shares a corner, and passes through
        ([[0, 0, 0], [4, 0, 0], [0, 0, 4]], False),  # shares an edge
    ],
)
def test_two_triangles_cross_if_one_passes_through_the_other(other: list[list[float]], crosses: bool) -> None:
    vertices = np.unique(np.concatenate([LYING, np.array(other, float)]), axis=0)
    faces = [[int((vertices == corner).all(1).argmax()) for corner in corners] for corners in (LYING, other)]
    for order in ([0, 1], [1, 0]):
        assert has_crossing_faces(Mesh(vertices, np.array(faces)[order])) == crosses


def test_cubes_cross_if_they_overlap_and_not_if_they_touch() -> None:
    assert not has_crossing_faces(CUBE)
    assert not has_crossing_faces(joined(CUBE, moved(CUBE, 0.25, 1, 0.25)))
    assert has_crossing_faces(joined(CUBE, moved(CUBE, 0.25, 0.5, 0.375)))
    assert not has_crossing_faces(joined(CUBE, moved(CUBE, 3, 0, 0)))
    assert not has_crossing_faces(EMPTY)


def test_crossings_of_many_faces_are_found_in_blocks() -> None:
    many = joined(*(moved(CUBE, 2 * number, 0, 0) for number in range(120)))
    assert len(many.faces) ** 2 > 2**18
    assert not has_crossing_faces(many)
    assert has_crossing_faces(joined(many, moved(CUBE, 238.25, 0.5, 0.375)))
    assert count_components(many) == 120


def test_two_samples_of_one_distribution_cannot_be_told_apart_and_a_copy_covers_all() -> None:
    generator = np.random.default_rng(1)
    one, other = generator.normal(size=(2, 60, 1, 3)) + 0.1 * generator.normal(size=(8, 3))
    assert compare_sets(one, one).coverage == 1
    assert compare_sets(one, one).mmd == pytest.approx(0, abs=1e-12)
    assert 0.35 < compare_sets(one, other).one_nna < 0.65
