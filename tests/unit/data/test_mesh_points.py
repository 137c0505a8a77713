"""Point clouds of mesh data sets: on the surface of the variant that the codes belong to, and drawn anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintet.common.rng import ItemRNG
from quintet.config import MeshDataConfig
from quintet.data.mesh import augmented, mesh_folder_splits
from quintet.data.mesh_points import CloudSettings, chosen_points, packed, surface_splits, unpacked
from quintet.media.mesh import LIMIT, Mesh, clean, normalise, read_mesh
from quintet.media.mesh_formats import read_soup
from quintet.media.mesh_measures import corners_of, distances_to
from quintet.media.points import normalise_cloud, sample_surface

BALL = np.random.default_rng(0).normal(size=(2000, 3))
BALL /= np.linalg.norm(BALL, axis=1, keepdims=True)


def rng(epoch: int, item: int = 0) -> ItemRNG:
    return ItemRNG(0, [epoch], [item])


def test_packing_keeps_a_thousandth_of_a_bin() -> None:
    points, normals = unpacked(packed(0.7 * BALL, BALL))
    assert np.abs(points - 0.7 * BALL).max() < 1e-3 / 128
    assert np.abs(normals - BALL).max() < 1e-3
    assert packed(BALL, BALL).min() >= 0  # -1 is the padding of the token cache


def test_points_are_drawn_anew_in_each_epoch_and_the_same_again() -> None:
    settings = CloudSettings(500, noise=0.05, crop=0.5, normal_drop_prob=0.5)
    clouds = [chosen_points(BALL, BALL, rng(epoch), settings) for epoch in range(4)]
    again = [chosen_points(BALL, BALL, rng(epoch), settings) for epoch in range(4)]
    assert all(map(torch.equal, clouds, again))
    assert len({cloud.numpy().tobytes() for cloud in clouds}) == 4
    plain = chosen_points(BALL, BALL, rng(0), CloudSettings(500))
    rows = {tuple(row) for row in np.concatenate([BALL, BALL], axis=1).astype(np.float32).tolist()}
    chosen = [tuple(row) for row in plain.tolist()]
    assert len(set(chosen)) == 500
    assert set(chosen) <= rows


def test_few_points_are_repeated() -> None:
    assert len(np.unique(chosen_points(BALL[:20], BALL[:20], rng(0), CloudSettings(64)).numpy(), axis=0)) == 20


def test_noise_and_crops_have_the_sizes_of_their_keys() -> None:
    deviations, remaining = [], []
    for epoch in range(200):
        noisy = chosen_points(BALL, BALL, rng(epoch), CloudSettings(1000, noise=0.02))
        deviations.append((noisy[:, :3].norm(dim=1) - 1).std().item() / (2 * LIMIT))
        cropped = chosen_points(BALL, BALL, rng(epoch), CloudSettings(1000, crop=0.5))
        remaining.append(len(np.unique(cropped.numpy(), axis=0)))
    assert max(deviations) == pytest.approx(0.02, rel=0.1)
    assert np.mean(deviations) == pytest.approx(0.01, rel=0.1)
    assert min(remaining) >= 990  # of 2,000 points at least half are left
    # What is left of a ball lies on one side of a plane.
    half = chosen_points(BALL, BALL, rng(1), CloudSettings(1000, crop=0.5))[:, :3]
    assert half.mean(0).norm() > 0.1


def test_normals_are_dropped_for_the_fraction_of_the_key() -> None:
    settings = CloudSettings(20, normal_drop_prob=0.3)
    dropped = [not chosen_points(BALL, BALL, rng(epoch), settings)[:, 3:].any() for epoch in range(400)]
    assert np.mean(dropped) == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("max_faces", [800, 30])
def test_points_lie_on_the_variant_that_the_codes_belong_to(meshes: Path, tmp_path: Path, max_faces: int) -> None:
    """Also where codes are those of a decimated mesh: its points are those of the original."""
    config = MeshDataConfig(path=str(meshes), max_faces=max_faces)
    media = mesh_folder_splits(config, 128, max_faces, decimate=True)
    source: Any = media.train
    surfaces: Any = surface_splits(media, 128, str(tmp_path)).train
    counts = [len(read_mesh(meshes / source.name(item)).faces) for item in range(len(source))]
    assert (max(counts) > max_faces) == (max_faces == 30)
    moved = 0
    for item in range(len(source)):
        variant = ItemRNG(0, [3], [item])
        points = surfaces.media.cloud(surfaces.load(item, rng(0, item))["surface"].numpy(), variant)[0]
        mesh = source.mesh(item)
        target = augmented(mesh, variant, 4096)
        original = clean(normalise(Mesh(*_soup(meshes / source.name(item)))), 4096)
        distance = distances_to(points, corners_of(target))[0].mean()
        assert distance < (0.002 if counts[item] <= max_faces else 0.1)
        assert np.abs(points).max() <= LIMIT + 1e-3 or counts[item] > max_faces
        moved += distances_to(points, corners_of(original))[0].mean() > 0.01
    assert moved > len(source) / 2


def _soup(path: Path) -> tuple[Any, Any]:
    soup = read_soup(path)
    return soup.vertices, soup.faces


def test_normals_of_a_stretched_surface_stay_perpendicular_to_it(meshes: Path, tmp_path: Path) -> None:
    media = mesh_folder_splits(MeshDataConfig(path=str(meshes)), 128, 800)
    source: Any = media.train
    surfaces: Any = surface_splits(media, 128, str(tmp_path)).train
    variant = ItemRNG(0, [5], [0])
    points, normals = surfaces.media.cloud(surfaces.load(0, rng(0))["surface"].numpy(), variant)
    target = augmented(source.mesh(0), variant, 4096)
    corners = corners_of(target)
    _, nearest = distances_to(points, corners)
    faces = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    faces /= np.linalg.norm(faces, axis=1, keepdims=True)
    cosines = (faces[nearest] * normals).sum(1)
    assert np.median(np.abs(cosines)) > 0.999
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-6)


def test_a_scan_and_a_mesh_of_the_data_are_in_the_same_box(meshes: Path) -> None:
    path = next((meshes / "meshes").iterdir())
    vertices, faces = _soup(path)
    cloud, _ = normalise_cloud(sample_surface(Mesh(vertices * 7 + 3, faces), 20_000))
    assert distances_to(cloud.points[::20], corners_of(read_mesh(path)))[0].mean() < 0.01
