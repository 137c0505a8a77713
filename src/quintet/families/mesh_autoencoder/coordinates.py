"""Owns the tokenizer without learning: the bins of a face's coordinates are its codes, exact to the size of a bin.

Nine codes a triangle: z, y, x of each vertex, the order in which meshes are sorted, so that the codes of a canonical
mesh only ever rise from face to face.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.families.mesh_autoencoder.features import bin_centres, coordinate_bins
from quintet.families.mesh_autoencoder.packed import FaceTokenizer, Meshes, check_codes


class CoordinateTokenizer(FaceTokenizer, Pretrained, nn.Module):
    """Meshes with coordinates in [-1, 1] to codes `(faces, 3 * vertices of a face)` and back."""

    centres: Tensor

    CONFIG = MeshAutoencoderModelConfig

    def __init__(self, config: MeshAutoencoderModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(MeshAutoencoderModelConfig, {"kind": "coordinates", **keywords})
        # One row a corner: whatever is saved or hashed of this model tells both its numbers.
        centres = bin_centres(torch.arange(self.config.bins), self.config.bins)
        self.register_buffer("centres", centres.repeat(self.config.vertices_per_face, 1))

    @property
    def num_codes(self) -> int:
        return self.config.bins

    @property
    def tokens_per_face(self) -> int:
        return 3 * self.config.vertices_per_face

    @property
    def num_quantizers(self) -> int:
        return 1

    def encode(self, meshes: Meshes) -> Tensor:
        """The codes of all faces, `(faces, tokens of a face)`."""
        return coordinate_bins(meshes.corners.flip(-1).flatten(1), self.bins)

    def decode_from_codes(self, codes: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """The corners `(faces, vertices of a face, 3)` of packed codes; `lengths` are the meshes' numbers of faces."""
        check_codes(codes, len(codes) if lengths is None else sum(lengths), self.tokens_per_face)
        corners = F.embedding(codes.clamp(min=0), self.centres[0, :, None])
        return corners.view(-1, self.vertices_per_face, 3).flip(-1)
