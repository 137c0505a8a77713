"""Point clouds of the meshes of a data set, for conditioning: stored in the token cache, drawn anew in every epoch.

The surface of each mesh is sampled once, before decimation and without augmentation. The codes of a training item
belong to one of several augmented variants; its points are moved in the same way. All other random choices (which of
the stored points, noise, cropping, dropped normals) use the random numbers of the item and the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item, collate
from quintet.common.rng import ItemRNG
from quintet.data.index.entry import Entry
from quintet.data.mesh import MeshFolder, PythonMeshes, augmentation
from quintet.data.splits import Splits
from quintet.data.token_cache import TokenDataset
from quintet.data.tokenized import TokenEncoder, tokenized_splits
from quintet.media.mesh import LIMIT, Mesh
from quintet.media.mesh_text import Vertices
from quintet.media.points import sample_surface

STORED = 2
"""Stored points for each point of a cloud, so that clouds differ from epoch to epoch, and can be cropped."""
_POSITION_BITS, _NORMAL_BITS = 20, 10
_POSITIONS, _NORMALS = 2**_POSITION_BITS - 1, 2**_NORMAL_BITS - 1


@dataclass
class Surfaces:
    """The surfaces of a mesh data set, as items of the token cache: `surface` (2 + points, 3), see `packed`.

    The first two rows are the corners of the bounding box of the mesh as it is encoded, on which augmentation depends.
    """

    media: MeshFolder | PythonMeshes
    count: int

    def __len__(self) -> int:
        return len(self.media)

    def name(self, item: int) -> str:
        return self.media.name(item)

    def metadata(self, item: int) -> Item:
        return {}

    @property
    def is_augmented(self) -> bool:
        """Whether the media data set loads augmented variants; Python data sets of quads do not."""
        takes_any = isinstance(self.media, MeshFolder) or self.media.corners == 3
        return self.media.train and self.media.augment and takes_any

    def load(self, item: int, rng: ItemRNG) -> Item:
        original, mesh = self._meshes(item, rng)
        cloud = sample_surface(original, self.count, int(rng.bits("surface", 1)[0, 0] >> np.uint64(1)))
        box = np.stack([mesh.vertices.min(axis=0), mesh.vertices.max(axis=0)])
        points, normals = np.concatenate([box, cloud.points]), np.concatenate([0 * box, cloud.normals])
        return {"surface": torch.from_numpy(packed(points, normals))}

    def cloud(self, surface: npt.NDArray[np.integer], variant: ItemRNG) -> tuple[Vertices, Vertices]:
        """The points and normals of a loaded surface, augmented with the random numbers of a variant of the codes."""
        points, normals = unpacked(surface)
        (low, high), points, normals = points[:2], points[2:], normals[2:]
        if self.is_augmented:
            scale, shift = augmentation(low, high, variant)
            points, normals = points * scale + shift, normals / scale
        return points, normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)

    def _meshes(self, item: int, rng: ItemRNG) -> tuple[Mesh, Mesh]:
        """The mesh before decimation, and after it; neither is augmented."""
        media = replace(self.media, augment=False)
        if isinstance(media, PythonMeshes):
            loaded = media.load(item, rng)
            mesh = Mesh(loaded["vertices"].double().numpy(), loaded["faces"].numpy())
            return mesh, mesh
        original = replace(media, max_faces=None, memory=0).mesh(item)
        decimated = media.max_faces is not None and len(original.faces) > media.max_faces
        return original, media.mesh(item) if decimated else original


@dataclass
class SurfaceFiles(Surfaces):
    """The same for a folder, with what its cache key depends on."""

    media: MeshFolder

    @property
    def entries(self) -> Sequence[Entry]:
        return self.media.entries

    @property
    def preprocessing_key(self) -> str:
        return f"{replace(self.media, augment=False).preprocessing_key}, before decimation"


def surface_splits(media: Splits, num_points: int, cache: str | None) -> Splits:
    """The surfaces of mesh data sets, for clouds of `num_points` points, from the token cache or sampled now."""
    count = STORED * num_points

    def surfaces(source: Dataset) -> Surfaces:
        if isinstance(source, MeshFolder):
            return SurfaceFiles(source, count)
        assert isinstance(source, PythonMeshes)
        return Surfaces(source, count)

    sources = replace(
        media,
        train=surfaces(media.train),
        validation=surfaces(media.validation),
        extra_splits={split: surfaces(source) for split, source in media.extra_splits.items()},
    )
    encoder = TokenEncoder(f"{count} points of a surface", collate, lambda batch: batch["surface"], "surface")
    return tokenized_splits(encoder, sources, "surfaces sampled", cache=cache)


def packed(points: Vertices, normals: Vertices) -> npt.NDArray[np.int32]:
    """Points in the box from -1 to 1 and unit normals as one integer for each axis, (n, 3): 20 bits of the coordinate
    and 10 of the normal, half the size of floating-point numbers."""
    positions, directions = (
        np.rint((np.clip(values, -1, 1) + 1) / 2 * most).astype(np.int32)
        for values, most in ((points, _POSITIONS), (normals, _NORMALS))
    )
    codes: npt.NDArray[np.int32] = positions << _NORMAL_BITS | directions
    return codes


def unpacked(codes: npt.NDArray[np.integer]) -> tuple[Vertices, Vertices]:
    """The inverse of `packed`, up to rounding."""
    return (codes >> _NORMAL_BITS) / _POSITIONS * 2 - 1, (codes & _NORMALS) / _NORMALS * 2 - 1


@dataclass(frozen=True)
class CloudSettings:
    """Keys of point clouds: `data.num_points` and the augmentation of training."""

    count: int
    noise: float = 0.0
    crop: float = 0.0
    normal_drop_prob: float = 0.0


@dataclass
class PointClouds:
    """Point clouds (points, 6), coordinates and normals, that match the codes of the items of a data set."""

    surfaces: TokenDataset
    """Of a `Surfaces`."""
    codes: TokenDataset
    settings: CloudSettings

    def load(self, item: int, rng: ItemRNG) -> Tensor:
        assert isinstance(self.surfaces.media, Surfaces)
        surface = self.surfaces.load(item, rng)["surface"].numpy()
        variant = ItemRNG(0, [self.codes.variant(rng)], [item])
        return chosen_points(*self.surfaces.media.cloud(surface, variant), rng, self.settings)


def chosen_points(points: Vertices, normals: Vertices, rng: ItemRNG, settings: CloudSettings) -> Tensor:
    """`settings.count` of the points (n, 3) with normals, with the noise, crop and dropped normals of an item.

    The order is random. A cloud of fewer points repeats some of them.
    """
    order = np.argsort(rng.bits("points", len(points))[0], kind="stable")
    if settings.crop:
        direction = _gaussian(rng, "crop direction", 3)
        heights = (points[order] * direction).sum(axis=1)
        count = round(len(points) * (1 - settings.crop * rng.number("crop")))
        order = order[heights <= np.partition(heights, count - 1)[count - 1]]
    order = np.resize(order, settings.count)
    points, normals = points[order], normals[order]
    if settings.noise:
        deviation = settings.noise * rng.number("noise size") * 2 * LIMIT
        points = points + deviation * _gaussian(rng, "noise", settings.count, 3)
    if rng.number("normals") < settings.normal_drop_prob:
        normals = np.zeros_like(normals)
    return torch.from_numpy(np.concatenate([points, normals], axis=1).astype(np.float32))


def _gaussian(rng: ItemRNG, name: str, *shape: int) -> Any:
    """Normally distributed numbers, for an RNG of a single item."""
    radius = np.sqrt(-2 * np.log1p(-rng.uniform(f"{name} radius", *shape)[0].double().numpy()))
    return radius * np.cos(2 * math.pi * rng.uniform(f"{name} angle", *shape)[0].double().numpy())
