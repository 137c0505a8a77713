"""Distances between surfaces against what is known of them, and what counts as valid and watertight."""

from __future__ import annotations

import numpy as np
import pytest

from quintet.media.mesh import Mesh
from quintet.media.mesh_measures import (
    FloatArray,
    as_triangles,
    chamfer_distances,
    compare,
    compare_sets,
    corners_of,
    distances_to,
    is_valid,
    is_watertight,
    merge_vertices,
    point_cloud,
    surface_points,
)

VERTICES = np.array([[x, y, z] for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
QUADS = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
CUBE = Mesh(VERTICES, as_triangles(QUADS))
TRIANGLE = np.array([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]])


@pytest.mark.parametrize(
    ("point", "distance"),
    [
        ((0.2, 0.3, 0.7), 0.7),  # above its inside
        ((0.5, -2.0, 0.0), 2.0),  # beside its first side
        ((-3.0, 0.5, 4.0), 5.0),  # beside its second side
        ((1.0, 1.0, 0.0), np.sqrt(0.5)),  # beside its third side
        ((-1.0, -1.0, 0.0), np.sqrt(2)),  # behind a corner
        ((4.0, 0.0, 4.0), 5.0),
        ((0.0, 0.25, 0.0), 0.0),
    ],
)
def test_the_distance_of_a_point_from_a_triangle(point: tuple[float, ...], distance: float) -> None:
    found, _ = distances_to(np.array([point]), TRIANGLE)
    assert found[0] == pytest.approx(distance, abs=1e-7)
    turned = np.array([[2, 0, 1]])
    assert distances_to(np.array([point]), TRIANGLE[:, turned[0]])[0][0] == pytest.approx(distance, abs=1e-7)


def test_distances_are_those_of_a_dense_sample() -> None:
    generator = np.random.default_rng(0)
    points, triangles = generator.normal(size=(50, 3)), generator.normal(size=(7, 3, 3))
    dense, owners = surface_points(triangles, 200_000, 0)
    apart = np.linalg.norm(points[:, None] - dense[::20], axis=-1)
    found, nearest = distances_to(points, triangles)
    np.testing.assert_allclose(found, apart.min(1), atol=0.06)
    assert (found <= apart.min(1) + 1e-9).all()
    assert (owners[::20][apart.argmin(1)] == nearest).mean() > 0.9


def test_triangles_without_area_are_lines_and_points() -> None:
    flat = np.array([[[0.0, 0, 0], [1, 0, 0], [2, 0, 0]], [[9.0, 9, 9]] * 3])
    found, nearest = distances_to(np.array([[1.5, 3, 0], [9, 9, 7]]), flat)
    assert found.tolist() == pytest.approx([3, 2])
    assert nearest.tolist() == [0, 1]
    assert np.isfinite(compare(CUBE, Mesh(np.zeros((1, 3)), np.zeros((2, 3), np.int64)))).all()


def test_points_lie_on_the_surface_by_area() -> None:
    points, owners = surface_points(corners_of(CUBE), 1200, 3)
    assert np.abs(points).max(1) == pytest.approx(0.5)
    assert np.bincount(owners).tolist() == pytest.approx([100] * 12, abs=1)
    assert np.array_equal(points, surface_points(corners_of(CUBE), 1200, 3)[0])


def test_equal_surfaces_are_close_whatever_their_triangulation() -> None:
    other = Mesh(VERTICES, np.concatenate([QUADS[:, [1, 2, 3]], QUADS[:, [1, 3, 0]]])[::-1])
    close = compare(CUBE, other)
    assert close.chamfer == pytest.approx(0, abs=1e-7)
    assert close.normals == pytest.approx(1)


def test_the_distance_is_a_fraction_of_the_box() -> None:
    """Two parallel sheets a tenth of their side apart."""
    sheet = Mesh(np.array([[0.0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]]), np.array([[0, 1, 2], [0, 2, 3]]))
    above = Mesh(sheet.vertices + np.array([0, 0, 0.2]), sheet.faces)
    assert compare(sheet, above).chamfer == pytest.approx(0.1)
    upright = Mesh(sheet.vertices[:, [0, 2, 1]], sheet.faces)
    assert compare(sheet, upright).normals == pytest.approx(0, abs=1e-9)


def test_valid_and_watertight_meshes() -> None:
    assert is_valid(CUBE)
    assert is_watertight(CUBE)
    assert is_watertight(Mesh(VERTICES, QUADS))
    for faces in (CUBE.faces[:0], [[0, 1, 1]], [[0, 1, 3], [3, 0, 1]]):
        assert not is_valid(Mesh(VERTICES, np.array(faces, np.int64).reshape(-1, 3)))
    on_a_line = Mesh(np.array([[0.0, 0, 0], [1, 1, 1], [2, 2, 2]]), np.array([[0, 1, 2]]))
    assert not is_valid(on_a_line)
    opened = Mesh(VERTICES, CUBE.faces[1:])
    assert is_valid(opened)
    assert not is_watertight(opened)
    assert not is_watertight(Mesh(VERTICES, CUBE.faces[:0]))


def test_corners_in_one_bin_are_one_vertex() -> None:
    generator = np.random.default_rng(0)
    corners = corners_of(Mesh(VERTICES * 0.98, CUBE.faces)) + generator.uniform(-1e-3, 1e-3, (12, 3, 3))
    merged = merge_vertices(corners, 128)
    assert len(merged.vertices) == 8
    assert is_valid(merged)
    assert is_watertight(merged)
    assert np.abs(merged.vertices[merged.faces] - corners).max() <= 1 / 128 + 1e-9


# --- sets ---------------------------------------------------------------------------------------------------------


def boxes(count: int, seed: int, longest: int = 0) -> FloatArray:
    """Clouds of boxes of random proportions whose longest side is along one axis."""
    generator = np.random.default_rng(seed)
    corners = np.array([[x, y, z] for x in (0.0, 1) for y in (0.0, 1) for z in (0.0, 1)])
    sides = [
        (0, 1, 3),
        (0, 3, 2),
        (4, 7, 5),
        (4, 6, 7),
        (0, 4, 5),
        (0, 5, 1),
        (2, 3, 7),
        (2, 7, 6),
        (0, 2, 6),
        (0, 6, 4),
    ]
    faces = np.array([*sides, (1, 5, 7), (1, 7, 3)])
    sizes = generator.uniform(0.1, 0.4, (count, 3))
    sizes[:, longest] = 1
    return np.stack([point_cloud(Mesh(corners * size, faces)) for size in sizes])


def test_a_set_compared_with_itself_and_with_a_similar_one() -> None:
    one, other = boxes(40, 0), boxes(40, 1)
    same = compare_sets(one, one)
    assert same.coverage == 1
    assert same.mmd == pytest.approx(0, abs=1e-12)
    assert same.one_nna == 0, "the nearest of each is its copy, in the other set"
    similar = compare_sets(one, other)
    assert similar.one_nna == pytest.approx(0.5, abs=0.15)
    assert similar.coverage > 0.35
    assert 0 < similar.mmd < 0.01


def test_sets_without_anything_in_common() -> None:
    apart = compare_sets(boxes(20, 0), boxes(20, 1, longest=2))
    assert apart.one_nna == 1
    assert apart.mmd > 0.05


def test_a_set_of_copies_of_one_mesh_has_low_coverage() -> None:
    real = boxes(20, 0)
    few = compare_sets(np.repeat(boxes(1, 1), 20, axis=0), real)
    assert few.coverage == 1 / 20
    assert few.one_nna > 0.9


def test_chamfer_distances_are_those_of_all_pairs_of_points() -> None:
    clouds = np.random.default_rng(0).random((5, 7, 3))
    distances = chamfer_distances(clouds)
    for one in range(5):
        for other in range(5):
            squares = ((clouds[one][:, None] - clouds[other]) ** 2).sum(-1)
            expected = squares.min(axis=0).mean() + squares.min(axis=1).mean()
            assert distances[one, other] == pytest.approx(expected, abs=1e-12)


def test_point_clouds_do_not_depend_on_position_and_size() -> None:
    mesh = Mesh(np.array([[0.0, 0, 0], [2, 0, 0], [0, 1, 0]]), np.array([[0, 1, 2]]))
    moved = Mesh(mesh.vertices * 0.25 + 0.5, mesh.faces)
    assert np.allclose(point_cloud(mesh), point_cloud(moved))
    assert np.abs(point_cloud(mesh)).max() <= 0.5
    point = Mesh(np.zeros((3, 3)), mesh.faces)
    assert np.array_equal(point_cloud(point), np.zeros_like(point_cloud(point)))
