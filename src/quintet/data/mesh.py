"""Mesh datasets: the files of a captioned folder, or the items of a Python data set; augmented, in canonical order.

An item holds `vertices` (n, 3) float32 in (-1, 1), `faces` (m, 3 or 4) int64, and the `metadata` of its file. At the
resolution of the bins, vertices are distinct, every face has an area, and both are sorted, also after augmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from quintet.common.batch import Item
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.config import DataConfig, MeshDataConfig
from quintet.data.python_dataset import CAPTION, Field, Indexable, PythonDataset, caption_of, split_object
from quintet.data.splits import FolderDataset, Splits, split_folder
from quintet.errors import UnreadableItem
from quintet.media import mesh as meshes
from quintet.media.mesh import Mesh
from quintet.media.mesh_text import Vertices

SCALES = (0.75, 1.25)
"""Range of the random scale of each axis."""
SHIFT = 0.1
"""Largest random shift along each axis."""


@dataclass
class MeshFolder(FolderDataset[Mesh]):
    """Meshes of a scanned folder, with their captions, as items. Nothing is random if `train` is false."""

    bins: int = field(default=meshes.BINS, kw_only=True)
    max_faces: int | None = field(default=None, kw_only=True)
    decimate: bool = field(default=False, kw_only=True)
    """Whether a mesh of more than `max_faces` is decimated instead of skipped."""
    augment: bool = field(default=True, kw_only=True)
    """Whether each axis is scaled and shifted at random, for each item and epoch."""
    corners: int = field(default=3, kw_only=True)
    """Vertices of a face; with 4, only files of quads can be used."""

    def load(self, item: int, rng: ItemRNG) -> Item:
        mesh = self.mesh(item)
        if self.train and self.augment:
            mesh = augmented(mesh, rng, self.bins)
        vertices = torch.from_numpy(mesh.vertices.astype(np.float32))
        return {**self.metadata(item), "vertices": vertices, "faces": torch.from_numpy(mesh.faces)}

    @property
    def preprocessing_key(self) -> str:
        """Text of all preprocessing settings; part of the token-cache key."""
        text = f"{self.bins} bins, {self.max_faces} faces, decimate={self.decimate}"
        text += "" if self.corners == 3 else f", {self.corners} corners"
        augmentation = f", stretched {SCALES[0]} to {SCALES[1]}, shifted {SHIFT}"
        return text + augmentation if self.train and self.augment else text

    def mesh(self, item: int) -> Mesh:
        """The mesh of an item, without augmentation."""
        if item in self._cached:
            return self._cached[item]
        mesh = meshes.read_mesh(
            self._file(item), bins=self.bins, max_faces=self.max_faces, decimate=self.decimate, corners=self.corners
        )
        return self._cache(item, mesh, mesh.vertices.nbytes + mesh.faces.nbytes)

    def count_large(self, most: int = 32) -> tuple[int, int]:
        """How many of at most `most` meshes, spread over the data set, have more than `max_faces` faces, and how many
        of them could be read."""
        counts = []
        for item in sorted({position * len(self) // most for position in range(most)}) if len(self) else ():
            with suppress(UnreadableItem):
                counts.append(meshes.count_faces(self._file(item), bins=self.bins, corners=self.corners))
        return sum(self.max_faces is not None and count > self.max_faces for count in counts), len(counts)


def say_large_meshes(splits: Splits) -> None:
    """Say once, before training, which part of the meshes is too large, and what happens to them."""
    folder = splits.train
    if not isinstance(folder, MeshFolder):
        return
    large, count = folder.count_large()
    if large:
        decimated = folder.decimate and folder.corners == 3
        what = "decimated" if decimated else "left out; raise data.max_faces, or set data.decimate=true for triangles"
        part = f"about {100 * large / count:.0f} % of the meshes ({large} of {count} that were looked at)"
        say(f"{part} have more than data.max_faces={folder.max_faces} faces and are {what}")


def augmented(mesh: Mesh, rng: ItemRNG, bins: int = meshes.BINS) -> Mesh:
    """Scale and shift each axis at random, inside the unit box, then clean and sort the mesh again."""
    scale, shift = augmentation(mesh.vertices.min(axis=0), mesh.vertices.max(axis=0), rng)
    moved = meshes.clean(Mesh(mesh.vertices * scale + shift, mesh.faces), bins)
    if not len(moved.faces):
        raise UnreadableItem(f"no face of it has an area at {bins} bins a side once it is augmented")
    return meshes.canonical(moved, bins)


def augmentation(low: Vertices, high: Vertices, rng: ItemRNG) -> tuple[Vertices, Vertices]:
    """The scale (3,) and the shift (3,) of a mesh with the corners `low` and `high` of its bounding box."""
    numbers = np.array([[rng.number(f"{what}-{axis}") for axis in "xyz"] for what in ("scale", "shift")])
    max_scale = 2 * meshes.LIMIT / np.maximum(high - low, 1e-9)
    scale = np.minimum(SCALES[0] + (SCALES[1] - SCALES[0]) * numbers[0], max_scale)
    shift = SHIFT * (2 * numbers[1] - 1)
    return scale, np.clip(shift, -meshes.LIMIT - low * scale, meshes.LIMIT - high * scale)


def mesh_folder_splits(
    config: DataConfig,
    bins: int,
    max_faces: int | None,
    *,
    decimate: bool = False,
    augment: bool = True,
    corners: int = 3,
    memory_megabytes: int = 512,
) -> Splits:
    """Splits of the folders that the configuration names."""
    make = partial(
        MeshFolder,
        bins=bins,
        max_faces=max_faces,
        decimate=decimate,
        augment=augment,
        corners=corners,
        memory=memory_megabytes * 2**20,
    )
    return split_folder(config, meshes.EXTENSIONS, make)


def _is_table(value: Any, columns: Sequence[int], is_float: bool) -> bool:
    """Whether a value is a 2-D array, of floats or of integers, with one of these numbers of columns."""
    if not hasattr(value, "ndim") or value.ndim != 2 or value.shape[1] not in columns:
        return False
    is_integer = "int" in str(value.dtype)
    return is_integer != is_float


FIELDS: tuple[Field, ...] = (
    Field("vertices", ("vertex", "points"), lambda value: _is_table(value, (3,), True), "n x 3 coordinates, -1 to 1"),
    Field("faces", ("triangles", "quads"), lambda value: _is_table(value, (3, 4), False), "m x 3 or m x 4 integers"),
    Field(
        "face_edges",
        (),
        lambda value: _is_table(value, (2,), False),
        "pairs of adjacent faces; ignored, since they follow from the faces",
        required=False,
    ),
    CAPTION,
)


@dataclass
class PythonMeshes(PythonDataset):
    """Meshes of a Python data set. Triangle meshes are cleaned, sorted and, in training, augmented; quads are not."""

    fields = FIELDS

    corners: int
    bins: int
    max_faces: int
    augment: bool

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        vertices = np.asarray(routed["vertices"], np.float64)
        faces = np.asarray(routed["faces"], np.int64)
        faces = faces[(faces >= 0).all(1)]  # padding
        self._check(vertices, faces)
        mesh = Mesh(vertices, faces)
        if self.corners == 3:
            mesh = self._prepared(mesh, rng)
        return {
            "texts": caption_of(routed),
            "vertices": torch.from_numpy(mesh.vertices.astype(np.float32)),
            "faces": torch.from_numpy(mesh.faces),
        }

    def _check(self, vertices: Any, faces: Any) -> None:
        if not len(faces):
            raise UnreadableItem("has no faces")
        if faces.shape[1] != self.corners:
            raise UnreadableItem(f"has faces of {faces.shape[1]} vertices, model.vertices_per_face is {self.corners}")
        if len(faces) > self.max_faces:
            raise UnreadableItem(f"{len(faces)} faces, more than data.max_faces={self.max_faces}")
        if faces.max() >= len(vertices):
            raise UnreadableItem(f"a face names vertex {faces.max()} of {len(vertices)}")
        used = vertices[np.unique(faces)]
        if np.abs(used).max() > 1:
            raise UnreadableItem("has coordinates outside of -1 to 1; scale it first")

    def _prepared(self, mesh: Mesh, rng: ItemRNG) -> Mesh:
        if not np.isfinite(mesh.vertices).all():
            raise UnreadableItem("has coordinates that are not finite")
        mesh = meshes.clean(mesh, self.bins)
        if not len(mesh.faces):
            raise UnreadableItem(f"no face of it has an area at {self.bins} bins a side")
        return augmented(mesh, rng, self.bins) if self.train and self.augment else meshes.canonical(mesh, self.bins)


def python_mesh_splits(
    dataset: Indexable,
    config: MeshDataConfig,
    corners: int,
    bins: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
    kind: type[PythonMeshes] | None = None,
) -> Splits:
    """Splits of a Python data set, by fraction and seed unless `validation` is another data set."""
    make = partial(kind or PythonMeshes, corners=corners, bins=bins, max_faces=config.max_faces, augment=config.augment)
    return split_object(dataset, config, make, validation, declared)
