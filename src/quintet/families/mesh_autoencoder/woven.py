"""`WovenTokenizer`: a tokenizer without training that writes each vertex of a mesh once, see `media/mesh_weaving.py`.

The codes of a mesh are one row, (tokens, 1): coordinates, z, y and x of a vertex, and operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.families.mesh_autoencoder.features import bin_centres
from quintet.families.mesh_autoencoder.packed import FaceTokenizer, Meshes, check_codes
from quintet.media.mesh import Mesh, canonical, dequantise, quantise
from quintet.media.mesh_weaving import Vocabulary, unweave, weave


class WovenTokenizer(FaceTokenizer, Pretrained, nn.Module):
    """Meshes with coordinates in [-1, 1] to codes (tokens, 1) and back."""

    woven_centres: Tensor

    CONFIG = MeshAutoencoderModelConfig

    def __init__(self, config: MeshAutoencoderModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(MeshAutoencoderModelConfig, {"kind": "woven", **keywords})
        # The saved and hashed state depends on `bins`.
        self.register_buffer("woven_centres", bin_centres(torch.arange(self.config.bins), self.config.bins))

    @property
    def num_codes(self) -> int:
        return Vocabulary(self.bins).size

    @property
    def tokens_per_face(self) -> int:
        """A row of codes is not divided into faces."""
        return 1

    @property
    def num_quantizers(self) -> int:
        return 1

    def encode_rows(self, meshes: Meshes) -> list[Tensor]:
        vertices = meshes.by_vertex.split(meshes.vertices)
        faces = meshes.by_face.split(meshes.faces - meshes.by_vertex.starts[meshes.by_face.items][:, None])
        rows = []
        for points, corners in zip(vertices, faces, strict=True):
            tokens = weave(quantise(points.cpu().double().numpy(), self.bins), corners.cpu().numpy(), self.bins)
            rows.append(torch.tensor(tokens, device=points.device)[:, None])
        return rows

    def decode_rows(self, rows: Sequence[Tensor]) -> list[Tensor]:
        return [self._corners(row) for row in rows]

    def _corners(self, row: Tensor) -> Tensor:
        """The corners (faces, 3, 3) of the codes of a mesh, in canonical order."""
        check_codes(row, len(row), self.tokens_per_face)
        try:
            positions, faces = unweave(row[:, 0].tolist(), self.bins)
        except ValueError as problem:
            raise UsageError(f"these are not the codes of a mesh: {problem}") from None
        mesh = canonical(Mesh(dequantise(positions, self.bins), faces), self.bins)
        corners = torch.from_numpy(mesh.vertices[mesh.faces])
        return corners.to(row.device, self.woven_centres.dtype)
