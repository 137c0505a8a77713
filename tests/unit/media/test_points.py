"""Point clouds from files of each kind, and files that are none."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quintet.errors import UnreadableItem
from quintet.media import points as clouds
from quintet.media.mesh import Mesh, write_mesh
from quintet.media.mesh_measures import as_triangles, compare_with_points
from quintet.media.points import MAX_POINTS, make_cloud, normalise_cloud, read_points, sample_surface, spread

VERTICES = np.array([[x, y, z] for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
QUADS = np.array([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
CUBE = Mesh(VERTICES, as_triangles(QUADS))

SAMPLED = sample_surface(CUBE, 200)
ROWS = np.concatenate([SAMPLED.points, SAMPLED.normals], axis=1).astype(np.float32)


def ply(rows: np.ndarray, layout: str = "ascii", names: tuple[str, ...] = ("x", "y", "z", "nx", "ny", "nz")) -> bytes:
    columns = "".join(f"property float {name}\n" for name in names)
    kinds = {"ascii": "ascii", "<": "binary_little_endian", ">": "binary_big_endian"}
    header = f"ply\nformat {kinds[layout]} 1.0\nelement vertex {len(rows)}\n{columns}end_header\n".encode()
    return header + (text(rows) if layout == "ascii" else rows[:, : len(names)].astype(f"{layout}f4").tobytes())


def text(rows: np.ndarray, separator: str = " ") -> bytes:
    content = io.StringIO()
    np.savetxt(content, rows, fmt="%.9g", delimiter=separator)
    return content.getvalue().encode()


@pytest.mark.parametrize(
    ("name", "content", "has_normals"),
    [
        ("a.ply", ply(ROWS), True),
        ("a.ply", ply(ROWS, "<"), True),
        ("a.ply", ply(ROWS, ">"), True),
        ("a.ply", ply(ROWS[:, :3], "<", ("x", "y", "z")), False),
        ("a.xyz", text(ROWS), True),
        ("a.xyz", text(ROWS[:, :3]), False),
        ("a.csv", b"# x, y, z\n" + text(ROWS, ", "), True),
        ("a.pts", b"200\n" + text(ROWS[:, :3]), False),
        ("a.txt", text(np.concatenate([ROWS[:, :3], 255 * np.abs(ROWS[:, 3:])], axis=1)), False),  # colours
    ],
)
def test_a_cloud_is_read_with_its_normals(tmp_path: Path, name: str, content: bytes, has_normals: bool) -> None:
    (tmp_path / name).write_bytes(content)
    cloud = read_points(tmp_path / name)
    np.testing.assert_allclose(cloud.points, ROWS[:, :3], atol=1e-6)
    assert cloud.has_normals == has_normals
    if has_normals:
        np.testing.assert_allclose(cloud.normals, ROWS[:, 3:], atol=1e-6)


@pytest.mark.parametrize("suffix", ["obj", "ply", "glb"])
def test_the_surface_of_a_mesh_file_is_sampled(tmp_path: Path, suffix: str) -> None:
    path = write_mesh(CUBE, tmp_path / f"cube.{suffix}")
    cloud = read_points(path)
    assert len(cloud.points) == MAX_POINTS
    assert np.abs(cloud.points).max(axis=1) == pytest.approx(0.5)
    np.testing.assert_allclose((cloud.points * cloud.normals).sum(1), 0.5, atol=1e-6)


HEADER = b"ply\nformat binary_little_endian 1.0\nelement vertex 100\nproperty float x\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"1 2 3\n", "1 of its 1 points have finite coordinates; a cloud needs at least 16"),
        (b"nan nan nan\n" * 50, "0 of its 50 points have finite"),
        (b"1 2 3\n" * 50, "all of its points are in one place"),
        (b"1 2 3\n" * 20 + b"4 5\n" + b"6 7 8\n" * 20, "3 numbers expected in row 21"),
        (b"1 2 3\n" * 20 + b"x y z\n", "damaged: could not convert"),
        (ply(ROWS, "<")[:-40], "truncated: 200 vertices promised"),
        (ply(ROWS).rsplit(b"\n", 9)[0], "truncated: 200 vertices promised"),
        (HEADER + b"end_header\n" + bytes(400), "its vertices have no 'y'"),
        (b"ply\nformat ascii 1.0\nelement edge 1\nproperty int a\nend_header\n1\n", "without vertices"),
        (b"once upon a time\n", "neither a point cloud (PLY, or a text of x y z) nor a mesh"),
        (b"OFF\n", "neither a point cloud"),
    ],
)
def test_what_is_no_cloud_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.xyz"
    path.write_bytes(content)
    with pytest.raises(UnreadableItem) as refused:
        read_points(path)
    assert reason in str(refused.value)


def test_an_image_is_no_cloud(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    with pytest.raises(UnreadableItem, match="neither a point cloud"):
        read_points(tmp_path / "a.png")


def test_points_that_are_not_finite_are_left_out() -> None:
    points = ROWS[:, :3].astype(np.float64)
    points[::4, 1] = np.nan
    assert len(make_cloud(points).points) == 150


def test_unusable_normals_are_zero_and_others_have_length_1() -> None:
    normals = 3.0 * ROWS[:, 3:].astype(np.float64)
    normals[0], normals[1] = 0, np.nan
    found = np.linalg.norm(make_cloud(ROWS[:, :3].astype(np.float64), normals).normals, axis=1)
    assert found[:2].tolist() == [0, 0]
    np.testing.assert_allclose(found[2:], 1)


@pytest.mark.filterwarnings("error")
def test_normals_that_are_not_finite_are_unknown(tmp_path: Path) -> None:
    rows = np.concatenate([SAMPLED.points, np.full_like(SAMPLED.points, np.nan)], axis=1)
    np.savetxt(tmp_path / "cloud.xyz", rows)
    assert not read_points(tmp_path / "cloud.xyz").has_normals
    rows[5, 3:] = [0, 1, 0]
    np.savetxt(tmp_path / "cloud.xyz", rows)
    cloud = read_points(tmp_path / "cloud.xyz")
    assert np.flatnonzero(cloud.normals.any(axis=1)).tolist() == [5]


@pytest.mark.parametrize("layout", ["<", "ascii", "text"])
def test_a_large_cloud_is_thinned_out_evenly_in_little_memory(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clouds, "MAX_POINTS", 1000)
    rows = np.repeat(np.arange(200_000 if layout == "<" else 20_000, dtype=np.float32)[:, None], 3, axis=1)
    path = tmp_path / "large.ply"
    path.write_bytes(text(rows) if layout == "text" else ply(rows, layout, ("x", "y", "z")))
    tracemalloc.start()
    cloud = read_points(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cloud.points) == 1000
    parts = np.floor(cloud.points[:, 0] * 1000 / len(rows))
    assert parts.tolist() == list(range(1000))
    assert peak < 8e6


def test_a_cloud_in_the_unit_box_can_be_put_back() -> None:
    moved = make_cloud(SAMPLED.points * [1, 2, 30] + [100, 0, -7])
    inside, placement = normalise_cloud(moved)
    assert np.abs(inside.points).max() == pytest.approx(0.98)
    np.testing.assert_allclose(placement.restored(Mesh(inside.points, CUBE.faces)).vertices, moved.points)
    with pytest.raises(UnreadableItem, match="too far apart"):
        normalise_cloud(make_cloud(SAMPLED.points * 1.7e308 * 2))


def test_a_mesh_fits_its_own_cloud_but_for_the_spacing_of_points() -> None:
    cloud = sample_surface(CUBE, 4096, seed=1)
    same = compare_with_points(CUBE, cloud.points, cloud.normals)
    assert 0.005 < same.chamfer < 0.012
    assert same.normals > 0.97
    larger = compare_with_points(Mesh(2 * CUBE.vertices, CUBE.faces), cloud.points, cloud.normals)
    assert larger.chamfer > 0.4
    assert np.isnan(compare_with_points(CUBE, cloud.points, 0 * cloud.normals).normals)
    assert compare_with_points(CUBE, cloud.points, 0 * cloud.normals).chamfer == same.chamfer


def test_points_are_spread_over_any_number_without_repetition() -> None:
    for count in (900, 1000, 1001, 1234, 5000):
        chosen = spread(count, 1000)
        assert len(np.unique(chosen)) == len(chosen) > 0.7 * min(count, 1000)
        assert chosen[-1] < count
        assert np.diff(chosen).max() <= 2 * count / 1000 + 1


def test_the_reason_of_a_damaged_file_is_short(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"1 2 3\n" * 20 + b"1 2 " + b"x" * 5000 + b"\n")
    with pytest.raises(UnreadableItem, match=r"damaged: could not convert .{1,120}$"):
        read_points(tmp_path / "a.xyz")
