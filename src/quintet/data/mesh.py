"""Owns the data of mesh recipes: the meshes of a captioned folder as training items, augmented and in canonical order.

An item holds `vertices` (n, 3) float32 in (-1, 1), `faces` (m, 3 or 4) int64, `texts`, and of the embedded data `class`
and `proportions`. Vertices are distinct, faces have an area, and both are in order, at the size of a bin: also after
augmentation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from quintet.common.rng import ItemRNG
from quintet.config import DataConfig
from quintet.data.index.folder import Entry, may_keep
from quintet.data.splits import Splits, split_folder
from quintet.errors import UnreadableItem
from quintet.media import mesh as meshes
from quintet.media.mesh import Mesh

SCALES = (0.75, 1.25)
SHIFT = 0.1
_KNOWN = ("class", "proportions")


@dataclass
class MeshFolder:
    """Meshes of a scanned folder as training items, and their captions. With `train` false nothing is drawn."""

    root: str | os.PathLike[str]
    entries: Sequence[Entry]
    bins: int = field(default=meshes.BINS, kw_only=True)
    max_faces: int | None = field(default=None, kw_only=True)
    decimate: bool = field(default=False, kw_only=True)
    """Reduce what has more faces instead of leaving it out."""
    augment: bool = field(default=True, kw_only=True)
    """Stretch each axis and shift, item by item and epoch by epoch."""
    train: bool = field(default=True, kw_only=True)
    corners: int = field(default=3, kw_only=True)
    """Of a face: with 4 only files of quads can be used."""
    memory: int = field(default=0, kw_only=True)
    """Bytes of meshes kept by each process; what does not fit is read again."""
    _kept: dict[int, Mesh] = field(default_factory=dict, init=False, repr=False)
    _used: int = field(default=0, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def name(self, item: int) -> str:
        """The file of an item, as logs and summaries call it."""
        return self.entries[item].file

    def load(self, item: int, draw: ItemRNG) -> dict[str, Any]:
        """Read one item; `UnreadableItem` with the reason if its file cannot be used."""
        mesh = self.mesh(item)
        if self.train and self.augment:
            mesh = augmented(mesh, draw, self.bins)
        vertices = torch.from_numpy(mesh.vertices.astype(np.float32))
        return {**self.about(item), "vertices": vertices, "faces": torch.from_numpy(mesh.faces)}

    def about(self, item: int) -> dict[str, Any]:
        """What is known of an item without opening its file: its caption and, in the embedded data, what it is."""
        entry = self.entries[item]
        return {"texts": entry.text or "", **{name: entry.extra[name] for name in _KNOWN if name in entry.extra}}

    @property
    def reading(self) -> str:
        """How files become items: with the files themselves, all that the codes of items depend on."""
        text = f"{self.bins} bins, {self.max_faces} faces, decimate={self.decimate}"
        text += "" if self.corners == 3 else f", {self.corners} corners"
        moved = f", stretched {SCALES[0]} to {SCALES[1]}, shifted {SHIFT}"
        return text + moved if self.train and self.augment else text

    def mesh(self, item: int) -> Mesh:
        """The mesh of an item as it was read."""
        if item in self._kept:
            return self._kept[item]
        file = self.entries[item].media(self.root)
        mesh = meshes.read_mesh(
            file, bins=self.bins, max_faces=self.max_faces, decimate=self.decimate, corners=self.corners
        )
        size = mesh.vertices.nbytes + mesh.faces.nbytes
        if may_keep(self.entries, item, size, self._used, self.memory):
            self._kept[item] = mesh
            self._used += size
        return mesh


def augmented(mesh: Mesh, draw: ItemRNG, bins: int = meshes.BINS) -> Mesh:
    """Stretched and shifted along each axis as far as it stays in the unit box, then clean and in order again."""
    chances = np.array([[draw.number(f"{what}-{axis}") for axis in "xyz"] for what in ("scale", "shift")])
    low, high = mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)
    most = 2 * meshes.LIMIT / np.maximum(high - low, 1e-9)
    scale = np.minimum(SCALES[0] + (SCALES[1] - SCALES[0]) * chances[0], most)
    shift = SHIFT * (2 * chances[1] - 1)
    shift = np.clip(shift, -meshes.LIMIT - low * scale, meshes.LIMIT - high * scale)
    moved = meshes.clean(Mesh(mesh.vertices * scale + shift, mesh.faces), bins)
    if not len(moved.faces):
        raise UnreadableItem(f"no face of it has an area at {bins} bins a side once it is augmented")
    return meshes.canonical(moved, bins)


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
    """The folders that the configuration names, split for validation."""

    def folder(path: str, entries: Sequence[Entry], train: bool) -> MeshFolder:
        return MeshFolder(
            path,
            entries,
            bins=bins,
            max_faces=max_faces,
            decimate=decimate,
            augment=augment,
            train=train,
            corners=corners,
            memory=memory_megabytes * 2**20,
        )

    return split_folder(config, meshes.EXTENSIONS, folder)
