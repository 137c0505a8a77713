"""`CoordinateTokenizer`: a tokenizer without training, whose codes are the quantized coordinates of a face.

A triangle has nine codes: z, y, x of each vertex. Meshes are sorted in this order, so that the faces of a canonical
mesh are sorted by their codes.
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
    """Meshes with coordinates in [-1, 1] to codes (faces, 3 * vertices_per_face) and back."""

    centres: Tensor

    CONFIG = MeshAutoencoderModelConfig

    def __init__(self, config: MeshAutoencoderModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(MeshAutoencoderModelConfig, {"kind": "coordinates", **keywords})
        # One row per corner: the saved and hashed state depends on both `bins` and `vertices_per_face`.
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
        """Codes (faces, tokens_per_face) of packed meshes."""
        return coordinate_bins(meshes.corners.flip(-1).flatten(1), self.bins)

    def decode_from_codes(self, codes: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Corners (faces, vertices_per_face, 3) of packed codes; `lengths` are the numbers of faces of the meshes."""
        check_codes(codes, len(codes) if lengths is None else sum(lengths), self.tokens_per_face)
        corners = F.embedding(codes.clamp(min=0), self.centres[0, :, None])
        return corners.view(-1, self.vertices_per_face, 3).flip(-1)
