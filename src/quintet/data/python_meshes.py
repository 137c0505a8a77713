"""Owns meshes of a data set handed over in Python as training sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG
from quintet.config import MeshDataConfig
from quintet.data.fields import Field, route
from quintet.data.mesh import augmented
from quintet.data.python_sets import Indexable, split_object
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem
from quintet.media.mesh import Mesh, canonical, clean


def _is_table(value: Any, columns: Sequence[int], numbers: bool) -> bool:
    """Whether it is an array of so many columns, of fractions or of whole numbers."""
    if not hasattr(value, "ndim") or value.ndim != 2 or value.shape[1] not in columns:
        return False
    whole = "int" in str(value.dtype)
    return whole != numbers


FIELDS = (
    Field("vertices", ("vertex", "points"), lambda value: _is_table(value, (3,), True), "n x 3 coordinates, -1 to 1"),
    Field("faces", ("triangles", "quads"), lambda value: _is_table(value, (3, 4), False), "m x 3 or m x 4 integers"),
    Field(
        "face_edges",
        (),
        lambda value: _is_table(value, (2,), False),
        "pairs of faces, which are found without being told",
        required=False,
    ),
    Field("texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False),
)


@dataclass
class PythonMeshes:
    """Items of a person's own data set. Triangles are cleaned, put in canonical order and, to train on, augmented;
    quads are taken as they are."""

    dataset: Indexable
    places: Sequence[int]
    corners: int
    bins: int
    max_faces: int
    augment: bool
    declared: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.places)

    def name(self, item: int) -> str:
        return f"item {self.places[item]}"

    def load(self, item: int, draw: ItemRNG) -> Item:
        routed = self._routed(item)
        vertices = np.asarray(routed["vertices"], np.float64)
        faces = np.asarray(routed["faces"], np.int64)
        faces = faces[(faces >= 0).all(1)]  # padding
        self._check(vertices, faces)
        mesh = Mesh(vertices, faces)
        if self.corners == 3:
            mesh = self._prepared(mesh, draw)
        return {
            "texts": _text(routed),
            "vertices": torch.from_numpy(mesh.vertices.astype(np.float32)),
            "faces": torch.from_numpy(mesh.faces),
        }

    def metadata(self, item: int) -> Item:
        return {"texts": _text(self._routed(item))}

    def _routed(self, item: int) -> dict[str, Any]:
        return route(self.dataset[self.places[item]], FIELDS, self.declared)

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

    def _prepared(self, mesh: Mesh, draw: ItemRNG) -> Mesh:
        if not np.isfinite(mesh.vertices).all():
            raise UnreadableItem("has coordinates that are not finite")
        mesh = clean(mesh, self.bins)
        if not len(mesh.faces):
            raise UnreadableItem(f"no face of it has an area at {self.bins} bins a side")
        return augmented(mesh, draw, self.bins) if self.augment else canonical(mesh, self.bins)


def _text(routed: dict[str, Any]) -> str:
    return "" if routed.get("texts") is None else str(routed["texts"])


def python_mesh_splits(
    dataset: Indexable,
    config: MeshDataConfig,
    corners: int,
    bins: int,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it."""

    def meshes(items: Indexable, places: Sequence[int], names: Sequence[str] | None, train: bool) -> PythonMeshes:
        return PythonMeshes(items, places, corners, bins, config.max_faces, config.augment and train, names)

    return split_object(dataset, config, meshes, validation, declared)
