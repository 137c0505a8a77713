"""Meshes of the user's data sets for the trainers of meshgpt-pytorch: as they are, neither cleaned nor sorted.

The codes that a trainer learns are then those of `tokenize` for the same mesh. Coordinates are scaled from
`coor_continuous_range` as in `MeshAutoencoder.forward`, where the bins at the ends take what is outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG
from quintet.compat.items import NamedItems
from quintet.compat.model import notify
from quintet.data.mesh import PythonMeshes
from quintet.data.python_dataset import caption_of
from quintet.errors import UnreadableItem
from quintet.families.mesh_transformer.data import CaptionedMeshes

OWN_RANGE = (-1.0, 1.0)


def to_own_range(vertices: Tensor, coordinates: tuple[float, float]) -> Tensor:
    """Coordinates of `coor_continuous_range` as coordinates of -1 to 1."""
    low, high = coordinates
    return vertices if coordinates == OWN_RANGE else (vertices - low) * (2 / (high - low)) - 1


class MeshItems(NamedItems):
    """Named items whose meshes have coordinates of -1 to 1 in `coordinates`, and -1 in padding instead of `pad_id`."""

    def __init__(
        self,
        dataset: Any,
        names: Sequence[str],
        ignored: Sequence[str],
        coordinates: tuple[float, float] = OWN_RANGE,
        pad_id: int = -1,
    ) -> None:
        super().__init__(dataset, names, ignored)
        self.coordinates, self.pad_id = coordinates, pad_id
        self._has_notified = False

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        if not isinstance(item, dict) or not {"vertices", "faces"} <= item.keys():
            return item
        vertices = to_own_range(torch.as_tensor(item["vertices"]).detach().cpu().float(), self.coordinates)
        tables = {name: self._unpadded(item[name]) for name in ("faces", "face_edges") if name in item}
        self._notify_outside(vertices, tables["faces"])
        return {**item, **tables, "vertices": vertices}

    def _unpadded(self, value: Any) -> Tensor:
        """Rows (rows, columns) of integers without padding."""
        given = torch.as_tensor(value).detach().cpu()
        if given.is_floating_point():
            raise UnreadableItem("has faces that are not integers; are vertices and faces swapped?")
        rows = given.long()
        return rows[(rows != self.pad_id).all(-1)] if rows.ndim == 2 else rows

    def _notify_outside(self, vertices: Tensor, faces: Tensor) -> None:
        is_valid = vertices.ndim == 2 and faces.numel() and 0 <= int(faces.min()) <= int(faces.max()) < len(vertices)
        if self._has_notified or not is_valid or not bool((vertices[faces].abs() > 1).any()):
            return
        self._has_notified = True
        low, high = self.coordinates
        notify(
            "MeshAutoencoder",
            f"meshes have coordinates outside of coor_continuous_range=({low:g}, {high:g}), which get the first or the "
            "last bin",
        )


@dataclass
class GivenMeshes(PythonMeshes):
    """Meshes of a Python data set as they are, with the `face_edges` of the user if there are any."""

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = self.routed(item)
        vertices = torch.from_numpy(np.asarray(routed["vertices"], np.float32))
        faces = torch.from_numpy(np.asarray(routed["faces"], np.int64))
        self._check_given(vertices, faces)
        edges = {} if routed.get("face_edges") is None else {"edges": _edges(routed["face_edges"], len(faces))}
        # Vertices behind the last used one are padding.
        return {"texts": caption_of(routed), "vertices": vertices[: int(faces.max()) + 1], "faces": faces, **edges}

    def _check_given(self, vertices: Tensor, faces: Tensor) -> None:
        if not len(faces):
            raise UnreadableItem("has no faces")
        if faces.shape[1] != self.corners:
            raise UnreadableItem(f"has faces of {faces.shape[1]} vertices; the model was built for {self.corners}")
        if len(faces) > self.max_faces:
            raise UnreadableItem(f"{len(faces)} faces, more than the {self.max_faces} faces of max_seq_len")
        if not 0 <= int(faces.min()) <= int(faces.max()) < len(vertices):
            raise UnreadableItem(f"its faces name vertices {int(faces.min())} to {int(faces.max())} of {len(vertices)}")
        if not vertices[faces].isfinite().all():
            raise UnreadableItem("has coordinates that are not finite")


@dataclass
class GivenCaptionedMeshes(GivenMeshes, CaptionedMeshes):
    """Meshes as they are, with a caption or a text embedding."""


def _edges(value: Any, faces: int) -> Tensor:
    """The sorted `edges` (2, pairs) of quintet of pairs (pairs, 2): the second face receives from the first."""
    pairs = torch.from_numpy(np.asarray(value, np.int64)).reshape(-1, 2)
    if pairs.numel() and not 0 <= int(pairs.min()) <= int(pairs.max()) < faces:
        raise UnreadableItem("its face_edges name a face that it does not have")
    order = (pairs[:, 1] * faces + pairs[:, 0]).argsort()
    return pairs[order].flip(1).t()
