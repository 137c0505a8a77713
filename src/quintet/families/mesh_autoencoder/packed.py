"""`Meshes`: a batch of meshes laid one after another, and making it of items, of single meshes or of padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Batch, Item
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.media.mesh import face_adjacency
from quintet.nn.graph import Packing


@dataclass(frozen=True)
class Meshes:
    """Several meshes without padding. `faces` are rows of `vertices`, `edges` pairs of rows of `faces`."""

    vertices: Tensor
    """`(vertices of all, 3)`, in [-1, 1]"""
    faces: Tensor
    """`(faces of all, vertices of a face)`"""
    edges: Tensor
    """`(2, pairs)`: faces that share an edge, each pair both ways, and every face with itself."""
    vertex_counts: tuple[int, ...]
    face_counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.face_counts)

    @cached_property
    def by_vertex(self) -> Packing:
        return Packing(self.vertex_counts, self.vertices.device)

    @cached_property
    def by_face(self) -> Packing:
        return Packing(self.face_counts, self.vertices.device)

    @property
    def corners(self) -> Tensor:
        """The coordinates of every face's vertices, `(faces, vertices of a face, 3)`."""
        return self.vertices[self.faces]

    def to(self, device: torch.device) -> Meshes:
        moved = {name: getattr(self, name).to(device) for name in ("vertices", "faces", "edges")}
        return replace(self, **moved)


def pack(vertices: Sequence[Tensor], faces: Sequence[Tensor]) -> Meshes:
    """Meshes one after another."""
    vertex_counts = tuple(len(each) for each in vertices)
    face_counts = tuple(len(each) for each in faces)
    if not face_counts or min(face_counts) == 0:
        raise UsageError("a mesh without a face cannot be encoded")
    vertex_starts = np.cumsum((0, *vertex_counts[:-1])).tolist()
    face_starts = np.cumsum((0, *face_counts[:-1])).tolist()
    edges = [neighbours(each) + start for each, start in zip(faces, face_starts, strict=True)]
    return Meshes(
        torch.cat([*vertices]),
        torch.cat([each + start for each, start in zip(faces, vertex_starts, strict=True)]),
        torch.cat(edges, dim=1),
        vertex_counts,
        face_counts,
    )


def neighbours(faces: Tensor) -> Tensor:
    """The edges of `Meshes` for one mesh, sorted: sums over neighbours come out the same in every batch."""
    pairs = torch.from_numpy(face_adjacency(faces.cpu().numpy()))
    itself = torch.arange(len(faces)).expand(2, -1)
    edges = torch.cat([itself, pairs, pairs.flip(0)], dim=1)
    order = (edges[0] * len(faces) + edges[1]).argsort()
    return edges[:, order].to(faces.device)


def unpadded(vertices: Tensor, faces: Tensor) -> Meshes:
    """Of one mesh, `(n, 3)` and `(m, k)`, or of a padded batch with one axis more, in which padding faces are -1."""
    if faces.ndim == 2:
        vertices, faces = vertices[None], faces[None]
    kept = [each[(each >= 0).all(-1)] for each in faces]
    # Vertices behind the last one in use are padding; no face knows of them.
    used = [each[: int(mesh.max()) + 1] if len(mesh) else each for each, mesh in zip(vertices, kept, strict=True)]
    return pack(used, kept)


class FaceTokenizer:
    """What a tokenizer of faces has beside its codes, whether it learns or not."""

    config: MeshAutoencoderModelConfig

    @property
    def vertices_per_face(self) -> int:
        return self.config.vertices_per_face

    @property
    def bins(self) -> int:
        return self.config.bins

    def encode(self, meshes: Meshes) -> Tensor:
        """The codes of all faces, `(faces, tokens of a face)`."""
        raise NotImplementedError

    @torch.no_grad()
    def tokenize(self, vertices: Tensor, faces: Tensor) -> Tensor:
        """Codes of one mesh, `(n, 3)` and `(m, k)`; or of a padded batch, in which padding faces and codes are -1."""
        meshes = unpadded(vertices, faces)
        codes = self.encode(meshes)
        if faces.ndim == 2:
            return codes
        padded = meshes.by_face.pad(codes, -1)
        return F.pad(padded, (0, 0, 0, faces.shape[1] - padded.shape[1]), value=-1)


def check_codes(codes: Tensor, faces: int, tokens_per_face: int) -> None:
    if codes.ndim != 2 or codes.shape != (faces, tokens_per_face):
        raise UsageError(f"the codes of {faces} faces are {faces} x {tokens_per_face}, not {tuple(codes.shape)}")


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """The fields of a batch. `reach`, one row an item, is where the loop finds the item with a non-finite number.

    Packed, so meshes of all sizes share a batch without waste; batches of similar length would gain nothing.
    """
    meshes = pack([item["vertices"] for item in items], [item["faces"] for item in items])
    fields: dict[str, Any] = {
        "vertices": meshes.vertices,
        "faces": meshes.faces,
        "edges": meshes.edges,
        "vertex_counts": meshes.vertex_counts,
        "face_counts": meshes.face_counts,
        "reach": torch.stack([item["vertices"].abs().amax(0) for item in items]),
    }
    others = [name for name in items[0] if name not in ("vertices", "faces")]
    return {**fields, **{name: [item[name] for item in items] for name in others}}


def meshes_of(batch: Batch) -> Meshes:
    return Meshes(batch["vertices"], batch["faces"], batch["edges"], batch["vertex_counts"], batch["face_counts"])
