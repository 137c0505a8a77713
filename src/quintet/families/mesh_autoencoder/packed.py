"""`Meshes`: a packed batch of meshes, built from items, from single meshes or from padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Batch, Item
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.families.mesh_autoencoder.features import FeatureBins, feature_bins
from quintet.media.mesh import face_adjacency
from quintet.nn.graph import Packing


class KnownOnDevice(NamedTuple):
    """What the data workers computed of a training batch, so that a step does not wait for a GPU."""

    vertex_counts: Tensor
    """(meshes,)"""
    face_counts: Tensor
    """(meshes,)"""
    features: FeatureBins


@dataclass(frozen=True)
class Meshes:
    """Several meshes, concatenated without padding. `faces` index `vertices`, and `edges` index `faces`."""

    vertices: Tensor
    """(vertices of all meshes, 3), in [-1, 1]"""
    faces: Tensor
    """(faces of all meshes, vertices_per_face)"""
    edges: Tensor
    """(2, pairs): faces that share an edge, each pair in both directions, and every face with itself."""
    vertex_counts: tuple[int, ...]
    face_counts: tuple[int, ...]
    known: KnownOnDevice | None = None

    def __len__(self) -> int:
        return len(self.face_counts)

    @cached_property
    def by_vertex(self) -> Packing:
        return Packing(self.vertex_counts, self.vertices.device, self.known and self.known.vertex_counts)

    @cached_property
    def by_face(self) -> Packing:
        return Packing(self.face_counts, self.vertices.device, self.known and self.known.face_counts)

    @property
    def corners(self) -> Tensor:
        """The coordinates of the vertices of every face, (faces, vertices_per_face, 3)."""
        return self.vertices[self.faces]

    def to(self, device: torch.device) -> Meshes:
        moved = {name: getattr(self, name).to(device) for name in ("vertices", "faces", "edges")}
        return replace(self, **moved)


def pack(vertices: Sequence[Tensor], faces: Sequence[Tensor], edges: Sequence[Tensor | None] | None = None) -> Meshes:
    """Pack the vertices (n, 3) and faces (m, vertices_per_face) of several meshes.

    `edges` (2, pairs) of a mesh, sorted, replace those that follow from its faces.
    """
    vertex_counts = tuple(len(each) for each in vertices)
    face_counts = tuple(len(each) for each in faces)
    if not face_counts or min(face_counts) == 0:
        raise UsageError("a mesh without faces cannot be encoded")
    vertex_starts = np.cumsum((0, *vertex_counts[:-1])).tolist()
    face_starts = np.cumsum((0, *face_counts[:-1])).tolist()
    given = [None] * len(faces) if edges is None else edges
    own_edges = [neighbours(each) if own is None else own for each, own in zip(faces, given, strict=True)]
    return Meshes(
        torch.cat([*vertices]),
        torch.cat([each + start for each, start in zip(faces, vertex_starts, strict=True)]),
        torch.cat([each + start for each, start in zip(own_edges, face_starts, strict=True)], dim=1),
        vertex_counts,
        face_counts,
    )


def neighbours(faces: Tensor) -> Tensor:
    """The `edges` of `Meshes` for one mesh, sorted, so that sums over neighbours are the same in every batch."""
    pairs = torch.from_numpy(face_adjacency(faces.cpu().numpy()))
    itself = torch.arange(len(faces)).expand(2, -1)
    edges = torch.cat([itself, pairs, pairs.flip(0)], dim=1)
    order = (edges[0] * len(faces) + edges[1]).argsort()
    return edges[:, order].to(faces.device)


def unpadded(vertices: Tensor, faces: Tensor) -> Meshes:
    """Pack one mesh, vertices (n, 3) and faces (m, k), or a padded batch with one axis more and -1 in padding faces."""
    if faces.ndim == 2:
        vertices, faces = vertices[None], faces[None]
    valid = [each[(each >= 0).all(-1)] for each in faces]
    # Vertices behind the last used one are padding.
    used = [each[: int(mesh.max()) + 1] if len(mesh) else each for each, mesh in zip(vertices, valid, strict=True)]
    return pack(used, valid)


class FaceTokenizer:
    """Base class of the learned tokenizer and of the coordinate tokenizer."""

    config: MeshAutoencoderModelConfig

    @property
    def vertices_per_face(self) -> int:
        return self.config.vertices_per_face

    @property
    def bins(self) -> int:
        return self.config.bins

    def encode(self, meshes: Meshes) -> Tensor:
        """Codes (faces, tokens_per_face) of packed meshes."""
        raise NotImplementedError

    def decode_from_codes(self, codes: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Corners (faces, vertices_per_face, 3) of packed codes; `lengths` are the numbers of faces of the meshes."""
        raise NotImplementedError

    def encode_rows(self, meshes: Meshes) -> list[Tensor]:
        """The codes (rows, tokens_per_face) of each mesh; a row is a face, except of the tokenizer `woven`."""
        return [*meshes.by_face.split(self.encode(meshes))]

    def decode_rows(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """The corners (faces, vertices_per_face, 3) of the codes of each mesh."""
        lengths = [len(row) for row in rows]
        return [*torch.split(self.decode_from_codes(torch.cat([*rows]), lengths), lengths)]

    @torch.no_grad()
    def tokenize(self, vertices: Tensor, faces: Tensor) -> Tensor:
        """Codes (m, tokens_per_face) of one mesh, vertices (n, 3) and faces (m, k).

        Or those of a padded batch with one axis more, in which padding faces and their codes are -1.
        """
        meshes = unpadded(vertices, faces)
        rows = self.encode_rows(meshes)
        if faces.ndim == 2:
            return rows[0]
        padded = pad_rows(rows)
        missing = max(0, faces.shape[1] - padded.shape[1])
        return F.pad(padded, (0, 0, 0, missing), value=-1)


def pad_rows(rows: Sequence[Tensor]) -> Tensor:
    """The codes (rows, tokens_per_face) of several meshes as one batch, padded with -1."""
    return torch.nn.utils.rnn.pad_sequence([*rows], batch_first=True, padding_value=-1)


def check_codes(codes: Tensor, faces: int, tokens_per_face: int) -> None:
    if codes.ndim != 2 or codes.shape != (faces, tokens_per_face):
        raise UsageError(
            f"the codes of {faces} faces must have the shape ({faces}, {tokens_per_face}), not {tuple(codes.shape)}"
        )


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """The fields of a packed batch. Meshes of all sizes share a batch without padding.

    `reach` (batch, 3) has one row per item: the training loop finds items with non-finite values in it.
    """
    vertices, faces = ([item[name] for item in items] for name in ("vertices", "faces"))
    meshes = pack(vertices, faces, [item.get("edges") for item in items])
    fields: dict[str, Any] = {
        "vertices": meshes.vertices,
        "faces": meshes.faces,
        "edges": meshes.edges,
        "vertex_counts": meshes.vertex_counts,
        "face_counts": meshes.face_counts,
        "reach": torch.stack([item["vertices"].abs().amax(0) for item in items]),
    }
    others = [name for name in items[0] if name not in ("vertices", "faces", "edges")]
    return {**fields, **{name: [item[name] for item in items] for name in others}}


def prepare(bins: int, batch: Batch) -> dict[str, Any]:
    """The fields of `KnownOnDevice`, for a collated batch on the CPU."""
    meshes = meshes_of(batch)
    features = feature_bins(meshes.corners, bins)._asdict()
    return {
        **{f"{name}_bins": value for name, value in features.items()},
        "vertex_numbers": torch.tensor(meshes.vertex_counts),
        "face_numbers": torch.tensor(meshes.face_counts),
    }


def meshes_of(batch: Batch) -> Meshes:
    """The packed meshes of a batch."""
    known = None
    if batch.is_prepared:
        features = FeatureBins(*(batch[f"{name}_bins"] for name in FeatureBins._fields))
        known = KnownOnDevice(batch["vertex_numbers"], batch["face_numbers"], features)
    vertices, faces, edges = (batch[name] for name in ("vertices", "faces", "edges"))
    return Meshes(vertices, faces, edges, batch["vertex_counts"], batch["face_counts"], known)
