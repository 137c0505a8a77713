"""`MeshAutoencoder` (MeshGPT, 2311.15475): faces to a fixed number of codes each, and back.

Graph convolutions over adjacent faces give a vector per face, which is projected to one vector per corner. Corners of
the same vertex are averaged, so that a vertex has the same codes in all of its faces. The decoder is a convolutional
network along the sequence of faces. Batches are packed without padding, and meshes of a batch do not affect each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32
from quintet.common.regions import compilable
from quintet.common.statistics import Statistics
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.families.mesh_autoencoder.coordinates import CoordinateTokenizer
from quintet.families.mesh_autoencoder.features import FaceFeatures, bin_centres
from quintet.families.mesh_autoencoder.packed import FaceTokenizer, Meshes, check_codes
from quintet.families.mesh_autoencoder.woven import WovenTokenizer
from quintet.nn.graph import GraphConvolution, Packing, RowConvolution, counts_at, means_at, packing
from quintet.nn.positions import waves
from quintet.nn.quantize import Quantizer, configured_quantizer
from quintet.nn.transformer import Block

WAVES = 32
"""Number of cosines of which the initial logits are sums, so that adjacent bins start with similar logits."""

__all__ = [
    "CoordinateTokenizer",
    "FaceDecoder",
    "MeshAutoencoder",
    "Reconstruction",
    "WovenTokenizer",
    "blurred_cross_entropy",
]


@dataclass
class Reconstruction:
    """Output of one pass through the tokenizer, for all faces of a batch."""

    logits: Tensor
    """(faces, 3 * vertices_per_face, bins)"""
    codes: Tensor
    """(faces, tokens_per_face)"""
    loss: Tensor
    statistics: Statistics


class MeshAutoencoder(FaceTokenizer, Pretrained, nn.Module):
    """Meshes with coordinates in [-1, 1] to codes (faces, vertices_per_face * num_quantizers) and back.

    The codes of a face are those of its vertices in order, the coarsest quantizer first. Keyword arguments are the keys
    of `model.*`; see `MeshAutoencoderModelConfig`.
    """

    CONFIG = MeshAutoencoderModelConfig

    def __init__(self, config: MeshAutoencoderModelConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config or validate(MeshAutoencoderModelConfig, keywords)
        self.features = FaceFeatures(self.config, self.config.encoder_dims[0])
        self.encoder = GraphEncoder(self.config)
        self.to_vertices = nn.Linear(self.config.encoder_dims[-1], self.config.vertices_per_face * self.config.code_dim)
        self.quantizer = _quantizer(self.config)
        self.decoder = FaceDecoder(self.config)

    @property
    def num_codes(self) -> int:
        """Vocabulary size of each quantizer."""
        return self.quantizer.num_codes

    @property
    def tokens_per_face(self) -> int:
        """Number of codes per face."""
        return self.config.vertices_per_face * self.quantizer.levels

    @property
    def num_quantizers(self) -> int:
        """Residual quantizers, each with one code per vertex and its own codebook."""
        return self.quantizer.levels

    def forward(self, meshes: Meshes, return_candidates: bool = False) -> Reconstruction:
        """Encode and decode. Changes no state; `return_candidates` adds candidates for dead codes to the statistics."""
        vectors, mask = self._vertex_vectors(meshes)
        quantized = self.quantizer(vectors, mask, return_candidates=return_candidates)
        corners = F.embedding(meshes.faces, meshes.by_vertex.unpad(quantized.vectors))
        logits = self.decoder(corners.flatten(1), meshes.by_face)
        return Reconstruction(logits, self._face_codes(meshes, quantized.codes), quantized.loss, quantized.statistics)

    def encode(self, meshes: Meshes) -> Tensor:
        """Codes (faces, tokens_per_face) of packed meshes."""
        return self._face_codes(meshes, self.quantizer.encode(*self._vertex_vectors(meshes)))

    @torch.no_grad()
    def decode_from_codes(self, codes: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Corners (faces, vertices_per_face, 3) of packed codes; `lengths` are the numbers of faces of the meshes.

        Corners of a mesh with the same codes are one vertex: their log-probabilities are averaged, so that they get the
        same position and a watertight mesh stays watertight.
        """
        rows = packing([len(codes)] if lengths is None else lengths, codes.device)
        check_codes(codes, len(rows), self.tokens_per_face)
        code_axes = (self.quantizer.levels,) if self.quantizer.code_axes else ()
        vectors = self.quantizer.codes_to_vectors(codes.view(len(codes), self.vertices_per_face, *code_axes))
        logits = self.decoder(vectors.flatten(1), rows)
        logits = at_least_fp32(logits)
        own = codes.view(len(codes) * self.vertices_per_face, -1)
        owners = rows.items.repeat_interleave(self.vertices_per_face)[:, None]
        distinct, indices = torch.unique(torch.cat([owners, own], dim=1), dim=0, return_inverse=True)
        log_probs = logits.log_softmax(-1).view(len(own), -1)
        vertices = means_at(log_probs, indices, len(distinct)).view(len(distinct), 3, self.bins).argmax(-1)
        bins = vertices[indices].view(-1, self.vertices_per_face, 3)
        return bin_centres(bins, self.bins, torch.promote_types(vectors.dtype, torch.float32))

    def latents(self, meshes: Meshes) -> Tensor:
        """The vectors (vertices, code_dim) of all vertices, from which a codebook can be initialised."""
        vectors, mask = self._vertex_vectors(meshes)
        return vectors[mask]

    def _vertex_vectors(self, meshes: Meshes) -> tuple[Tensor, Tensor]:
        """The vectors (meshes, vertices, code_dim) of the vertices, means over their faces, and the valid mask.

        Padded, because a quantizer samples its candidates per mesh; a vertex without a face is not valid.
        """
        if meshes.faces.shape[1] != self.vertices_per_face:
            raise UsageError(
                f"the faces have {meshes.faces.shape[1]} vertices, but the model was built with "
                f"vertices_per_face={self.vertices_per_face}"
            )
        return self.vertex_vectors(meshes, self.face_vectors(meshes))

    def face_vectors(self, meshes: Meshes) -> Tensor:
        """The vectors (faces, dim) of the faces, the output of the encoder."""
        features = self.features(meshes.corners, meshes.known and meshes.known.features)
        vectors: Tensor = self.encoder(features, meshes.edges, meshes.by_face)
        return vectors

    def vertex_vectors(self, meshes: Meshes, faces: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors (meshes, vertices, code_dim) of the vertices of faces (faces, dim), and the valid mask."""
        corners = self.to_vertices(faces).view(-1, self.config.code_dim)
        indices, count = meshes.faces.flatten(), len(meshes.vertices)
        means = means_at(corners, indices, count)
        mask = meshes.by_vertex.mask & meshes.by_vertex.pad(counts_at(indices, count) > 0)
        return meshes.by_vertex.pad(means), mask

    def _face_codes(self, meshes: Meshes, codes: Tensor) -> Tensor:
        return meshes.by_vertex.unpad(codes)[meshes.faces].flatten(1)


class GraphEncoder(nn.Module):
    """Graph convolutions over adjacent faces, then optional local attention: (faces, dim) to (faces, dim)."""

    def __init__(self, config: MeshAutoencoderModelConfig) -> None:
        super().__init__()
        widths = (config.encoder_dims[0], *config.encoder_dims)
        self.layers = nn.ModuleList(GraphLayer(before, after, config.dropout) for before, after in pairwise(widths))
        self.attention = LocalAttention(config, config.encoder_dims[-1], config.encoder_attention)

    def forward(self, faces: Tensor, edges: Tensor, by_face: Packing) -> Tensor:
        for layer in self.layers:
            faces = layer(faces, edges)
        out: Tensor = self.attention(faces, by_face)
        return out


class GraphLayer(nn.Module):
    """Layer norm and graph convolution, with a residual connection if the dimension stays the same."""

    recomputable = True

    def __init__(self, dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.convolution = GraphConvolution(dim, out_dim)
        self.dropout = nn.Dropout(dropout)
        self.is_residual = dim == out_dim

    def forward(self, faces: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = self.dropout(F.silu(self.convolution(self.norm(faces), edges)))
        return faces + out if self.is_residual else out


class FaceDecoder(nn.Module):
    """Corner vectors (faces, vertices_per_face * code_dim) to logits (faces, 3 * vertices_per_face, bins)."""

    def __init__(self, config: MeshAutoencoderModelConfig) -> None:
        super().__init__()
        self.bins = config.bins
        self.first = RowConvolution(config.vertices_per_face * config.code_dim, config.decoder_dims[0])
        layers: list[nn.Module] = []
        for before, after in pairwise((config.decoder_dims[0], *config.decoder_dims)):
            layers.append(ResidualBlock(before, after, config.dropout))
        self.blocks = nn.ModuleList(layers)
        self.attention = LocalAttention(config, config.decoder_dims[-1], config.decoder_attention)
        self.norm = nn.LayerNorm(config.decoder_dims[-1])
        self.to_logits = nn.Linear(config.decoder_dims[-1], config.vertices_per_face * 3 * config.bins)
        with torch.no_grad():
            self.to_logits.weight.copy_(
                _smooth_logits(config.vertices_per_face * 3, config.bins, config.decoder_dims[-1])
            )

    def forward(self, corners: Tensor, by_face: Packing) -> Tensor:
        return self.logits(self.hidden(corners, by_face))

    def hidden(self, corners: Tensor, by_face: Packing) -> Tensor:
        """The vectors (faces, dim) of the faces, after all blocks."""
        present = by_face.present
        rows = self.first(by_face.spread(corners), present)
        for block in self.blocks:
            rows = block(rows, present)
        faces: Tensor = self.attention(by_face.gather(rows), by_face)
        return faces

    def logits(self, faces: Tensor) -> Tensor:
        """Logits (faces, 3 * vertices_per_face, bins) of the vectors (faces, dim) of `hidden`."""
        logits: Tensor = self.to_logits(F.silu(self.norm(faces)))
        return logits.view(len(logits), -1, self.bins)


def _smooth_logits(coordinates: int, bins: int, dim: int) -> Tensor:
    """Initial weights (coordinates * bins, dim) with which adjacent bins have similar logits, scaled as by default."""
    mixed = torch.randn(coordinates, WAVES, dim) / math.sqrt(3 * WAVES * dim)
    return (waves(bins, WAVES) @ mixed).flatten(0, 1)


class ResidualBlock(nn.Module):
    """Two convolutions along the faces with a residual connection, linear if the dimension changes."""

    recomputable = True

    def __init__(self, dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Identity() if dim == out_dim else nn.Linear(dim, out_dim)
        self.norm = nn.LayerNorm(dim)
        self.first = RowConvolution(dim, out_dim)
        self.second = RowConvolution(out_dim, out_dim)
        self.dropout = nn.Dropout(dropout)
        # A block starts as the identity, so that depth does not hurt at the start of training.
        nn.init.zeros_(self.second.linear.weight)

    def forward(self, rows: Tensor, present: Tensor) -> Tensor:
        hidden = F.silu(self.first(self.norm(rows), present))
        update: Tensor = self.widen(rows) + self.second(self.dropout(hidden), present)
        return update


class LocalAttention(nn.Module):
    """Attention layers in which a face attends to faces of its mesh within a window; the identity without layers."""

    def __init__(self, config: MeshAutoencoderModelConfig, dim: int, layers: int) -> None:
        super().__init__()
        self.window = config.attention_window
        heads = dim // config.attention_head_dim
        self.blocks = nn.ModuleList(
            Block(dim, heads, config.attention_head_dim, dropout=config.dropout) for _ in range(layers)
        )

    def forward(self, faces: Tensor, by_face: Packing) -> Tensor:
        if not self.blocks:
            return faces
        positions = torch.arange(by_face.mask.shape[1], device=faces.device)
        near = (positions[:, None] - positions).abs() <= self.window
        # Padding attends to padding: every row of the mask needs an entry, and no valid face attends to padding.
        mask = (near & (by_face.mask[:, None] | ~by_face.mask[..., None]))[:, None]
        rows = by_face.pad(faces)
        for block in self.blocks:
            rows = block(rows, mask)
        return by_face.unpad(rows)


def _quantizer(config: MeshAutoencoderModelConfig) -> Quantizer:
    # A commitment weight of one: `loss.quantizer` scales the whole quantizer loss.
    options = {} if config.quantizer == "fsq" else {"commitment_weight": 1.0}
    return configured_quantizer(config, config.code_dim, config.num_quantizers, **options)


@compilable
def blurred_cross_entropy(logits: Tensor, targets: Tensor, blur: float) -> Tensor:
    """Cross-entropy (…) of logits (…, bins) with target bins (…) blurred by a Gaussian.

    The weights are normalised over the existing bins, so that they sum to one at the edges too. `blur` is the standard
    deviation in bins; 0 is the plain cross-entropy.
    """
    exact = at_least_fp32(logits)
    bins = logits.shape[-1]
    radius = int(2.5 * blur + 0.999)
    offsets = torch.arange(-radius, radius + 1, device=logits.device)
    weights = torch.exp(-0.5 * (offsets / max(blur, 1e-6)) ** 2).to(exact.dtype)
    taps = targets[..., None] + offsets
    probs = ((taps >= 0) & (taps < bins)).to(exact.dtype) * weights
    probs = probs / probs.sum(-1, keepdim=True)
    chosen = exact.gather(-1, taps.clamp(0, bins - 1))
    # Only the taps are gathered, without a target tensor of the size of the logits.
    return exact.logsumexp(-1) - (chosen * probs).sum(-1)
