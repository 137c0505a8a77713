"""`Padded`: a padded batch of meshes of meshgpt-pytorch as quintet's packed meshes, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.packed import Meshes, unpadded


@dataclass(frozen=True)
class Padded:
    """Packed meshes, and where their faces are in the padded batch."""

    meshes: Meshes
    face_mask: Tensor
    """(batch, faces), false at padding."""

    @classmethod
    def of(cls, vertices: Tensor, faces: Tensor, face_edges: Tensor | None, pad_id: int) -> Padded:
        if vertices.ndim != 3 or vertices.shape[-1] != 3 or faces.ndim != 3 or faces.is_floating_point():
            raise UsageError(
                f"vertices (batch, vertices, 3) and faces (batch, faces, corners) are expected, not "
                f"{tuple(vertices.shape)} and {tuple(faces.shape)}"
            )
        mask = (faces != pad_id).all(-1)
        own = faces.masked_fill(~mask[..., None], -1)
        if int(own.max()) >= vertices.shape[1]:
            raise UsageError(f"a face names vertex {int(own.max())} of {vertices.shape[1]}")
        meshes = unpadded(vertices, own)
        if face_edges is not None:
            meshes = replace(meshes, edges=_packed_edges(face_edges.to(faces.device), meshes, pad_id))
        return cls(meshes, mask)

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """(faces, …) of all meshes to (batch, faces, …), with `value` at padding."""
        rows = packed.new_full((*self.face_mask.shape, *packed.shape[1:]), value)
        where = self.face_mask.flatten().nonzero()[:, 0]
        return rows.flatten(0, 1).index_copy(0, where, packed).view_as(rows)

    def fields(self) -> dict[str, Any]:
        """The fields of a batch of the recipe `mesh-autoencoder`."""
        meshes = self.meshes
        parts = meshes.by_vertex.split(meshes.vertices)
        return {
            "vertices": meshes.vertices,
            "faces": meshes.faces,
            "edges": meshes.edges,
            "vertex_counts": meshes.vertex_counts,
            "face_counts": meshes.face_counts,
            "reach": torch.stack([part.abs().amax(0) for part in parts]),
        }


def _packed_edges(face_edges: Tensor, meshes: Meshes, pad_id: int) -> Tensor:
    """Pairs of faces (2, pairs) of all meshes, sorted, of padded pairs (batch, pairs, 2)."""
    if face_edges.ndim != 3 or len(face_edges) != len(meshes) or face_edges.shape[-1] != 2:
        raise UsageError(f"face_edges of shape {tuple(face_edges.shape)} are not (batch, pairs, 2)")
    edges = face_edges.long()
    valid = (edges != pad_id).all(-1)
    counts = torch.tensor(meshes.face_counts, device=edges.device)
    if bool(((edges >= counts[:, None, None]) & valid[..., None]).any()):
        raise UsageError("face_edges name a face that its mesh does not have")
    packed = (edges + meshes.by_face.starts[:, None, None])[valid]
    order = (packed[:, 1] * sum(meshes.face_counts) + packed[:, 0]).argsort()
    # The second face of a pair receives from the first.
    return packed[order].flip(1).t()
