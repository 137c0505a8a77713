"""Owns the mesh autoencoder of MeshGPT (2311.15475): faces to codes, the same number for each, and back.

Graph convolutions over neighbouring faces make a vector for each face, and of it one for each of its corners. The
corners that are one vertex are averaged, so that a vertex has the same codes in all of its faces. The decoder is a
convolutional network along the faces in their order. Batches are packed: there is no padding to leave out, and
nothing of one mesh reaches another.
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
from quintet.common.statistics import Statistics
from quintet.common.weights.pretrained import Pretrained
from quintet.config import validate
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderModelConfig
from quintet.families.mesh_autoencoder.coordinates import CoordinateTokenizer
from quintet.families.mesh_autoencoder.features import FaceFeatures, bin_centres, waves
from quintet.families.mesh_autoencoder.packed import FaceTokenizer, Meshes, check_codes
from quintet.nn.graph import GraphConvolution, Packing, RowConvolution, counts_at, means_at, packing
from quintet.nn.quantize import Quantizer, configured_quantizer
from quintet.nn.transformer import Block

WAVES = 32
"""Of which the logits of neighbouring bins begin as sums."""

__all__ = ["CoordinateTokenizer", "FaceDecoder", "MeshAutoencoder", "Reconstruction", "blurred_cross_entropy"]


@dataclass
class Reconstruction:
    """One pass through the tokenizer, of all faces of a batch."""

    logits: Tensor
    """Of every coordinate's bin, `(faces, 3 * vertices of a face, bins)`."""
    codes: Tensor
    """`(faces, tokens of a face)`"""
    loss: Tensor
    statistics: Statistics


class MeshAutoencoder(FaceTokenizer, Pretrained, nn.Module):
    """Meshes with coordinates in [-1, 1] to codes `(faces, vertices of a face * levels)` and back.

    The codes of a face are those of its vertices in turn, coarsest level first. Keyword arguments are the keys of
    `model.*`; see `MeshAutoencoderModelConfig`.
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
        """The vocabulary of each level."""
        return self.quantizer.num_codes

    @property
    def tokens_per_face(self) -> int:
        return self.config.vertices_per_face * self.quantizer.levels

    @property
    def num_quantizers(self) -> int:
        """Codes of a vertex, each of a vocabulary of its own."""
        return self.quantizer.levels

    def forward(self, meshes: Meshes, return_candidates: bool = False) -> Reconstruction:
        """Encode and decode. Changes no state; `return_candidates` adds candidates for dead codes to the statistics."""
        vectors, mask = self._vertex_vectors(meshes)
        quantized = self.quantizer(vectors, mask, return_candidates=return_candidates)
        corners = F.embedding(meshes.faces, meshes.by_vertex.unpad(quantized.vectors))
        logits = self.decoder(corners.flatten(1), meshes.by_face)
        return Reconstruction(logits, self._face_codes(meshes, quantized.codes), quantized.loss, quantized.statistics)

    def encode(self, meshes: Meshes) -> Tensor:
        """The codes of all faces, `(faces, tokens of a face)`."""
        return self._face_codes(meshes, self.quantizer.encode(*self._vertex_vectors(meshes)))

    @torch.no_grad()
    def decode_from_codes(self, codes: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """The corners `(faces, vertices of a face, 3)` of packed codes; `lengths` are the meshes' numbers of faces.

        Corners of a mesh that have the same codes are one vertex, and what is said of them is averaged: they come out
        at one place, and a mesh without holes stays without.
        """
        rows = packing([len(codes)] if lengths is None else lengths, codes.device)
        check_codes(codes, len(rows), self.tokens_per_face)
        levels = (self.quantizer.levels,) if self.quantizer.code_axes else ()
        vectors = self.quantizer.codes_to_vectors(codes.view(len(codes), self.vertices_per_face, *levels))
        logits = self.decoder(vectors.flatten(1), rows)
        logits = at_least_fp32(logits)
        own = codes.view(len(codes) * self.vertices_per_face, -1)
        owners = rows.items.repeat_interleave(self.vertices_per_face)[:, None]
        codebook_smoothing, numbers = torch.unique(torch.cat([owners, own], dim=1), dim=0, return_inverse=True)
        chances = logits.log_softmax(-1).view(len(own), -1)
        vertices = (
            means_at(chances, numbers, len(codebook_smoothing)).view(len(codebook_smoothing), 3, self.bins).argmax(-1)
        )
        places = vertices[numbers].view(-1, self.vertices_per_face, 3)
        return bin_centres(places, self.bins, torch.promote_types(vectors.dtype, torch.float32))

    def latents(self, meshes: Meshes) -> Tensor:
        """The vectors of all vertices, one row each: what a codebook can start from."""
        vectors, mask = self._vertex_vectors(meshes)
        return vectors[mask]

    def _vertex_vectors(self, meshes: Meshes) -> tuple[Tensor, Tensor]:
        """A vector for each vertex, the mean over its faces, and which of them are there.

        Padded to `(items, longest, code_dim)`, because a quantizer picks its candidates mesh by mesh; a vertex
        without a face has no vector.
        """
        if meshes.faces.shape[1] != self.vertices_per_face:
            raise UsageError(
                f"faces of {meshes.faces.shape[1]} vertices, but the model was built for "
                f"vertices_per_face={self.vertices_per_face}"
            )
        hidden = self.encoder(self.features(meshes.corners), meshes.edges, meshes.by_face)
        corners = self.to_vertices(hidden).view(-1, self.config.code_dim)
        places, count = meshes.faces.flatten(), len(meshes.vertices)
        means = means_at(corners, places, count)
        mask = meshes.by_vertex.mask & meshes.by_vertex.pad(counts_at(places, count) > 0)
        return meshes.by_vertex.pad(means), mask

    def _face_codes(self, meshes: Meshes, codes: Tensor) -> Tensor:
        return meshes.by_vertex.unpad(codes)[meshes.faces].flatten(1)


class GraphEncoder(nn.Module):
    """Graph convolutions of growing width over neighbouring faces, then local attention where the keys ask for it."""

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
    """A normalised graph convolution, beside the identity where the width stays."""

    recomputable = True

    def __init__(self, dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.convolution = GraphConvolution(dim, out_dim)
        self.dropout = nn.Dropout(dropout)
        self.adds = dim == out_dim

    def forward(self, faces: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = self.dropout(F.silu(self.convolution(self.norm(faces), edges)))
        return faces + out if self.adds else out


class FaceDecoder(nn.Module):
    """The vectors of all corners, `(faces, vertices of a face * code_dim)`, to logits of their coordinates' bins."""

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
        present = by_face.present
        rows = self.first(by_face.spread(corners), present)
        for block in self.blocks:
            rows = block(rows, present)
        faces = self.attention(by_face.gather(rows), by_face)
        logits: Tensor = self.to_logits(F.silu(self.norm(faces)))
        return logits.view(len(logits), -1, self.bins)


def _smooth_logits(coordinates: int, bins: int, dim: int) -> Tensor:
    """Weights `(coordinates * bins, dim)` as large as a linear layer's own, by which near bins are about as likely."""
    mixed = torch.randn(coordinates, WAVES, dim) / math.sqrt(3 * WAVES * dim)
    return (waves(bins, WAVES) @ mixed).flatten(0, 1)


class ResidualBlock(nn.Module):
    """Two convolutions along the faces beside the identity, or beside a linear map to another width."""

    recomputable = True

    def __init__(self, dim: int, out_dim: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Identity() if dim == out_dim else nn.Linear(dim, out_dim)
        self.norm = nn.LayerNorm(dim)
        self.first = RowConvolution(dim, out_dim)
        self.second = RowConvolution(out_dim, out_dim)
        self.dropout = nn.Dropout(dropout)
        # A block starts as the identity, so that depth costs nothing at the beginning.
        nn.init.zeros_(self.second.linear.weight)

    def forward(self, rows: Tensor, present: Tensor) -> Tensor:
        hidden = F.silu(self.first(self.norm(rows), present))
        update: Tensor = self.widen(rows) + self.second(self.dropout(hidden), present)
        return update


class LocalAttention(nn.Module):
    """Layers of attention in which a face sees those of its mesh that are near it in the order. None: the identity."""

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
        places = torch.arange(by_face.mask.shape[1], device=faces.device)
        near = (places[:, None] - places).abs() <= self.window
        # Padding sees its own neighbourhood; it must see something, and nobody sees it.
        mask = (near & (by_face.mask[:, None] | ~by_face.mask[..., None]))[:, None]
        rows = by_face.pad(faces)
        for block in self.blocks:
            rows = block(rows, mask)
        return by_face.unpad(rows)


def _quantizer(config: MeshAutoencoderModelConfig) -> Quantizer:
    # One unit of commitment: its weight is `loss.quantizer`, for all of the quantizer's loss.
    options = {} if config.quantizer == "fsq" else {"commitment_weight": 1.0}
    return configured_quantizer(config, config.code_dim, config.num_quantizers, **options)


def blurred_cross_entropy(logits: Tensor, places: Tensor, blur: float) -> Tensor:
    """The cross-entropy of each row of logits `(…, bins)` against the bin at its place and a little of those beside it.

    The weights are a Gaussian's over the bins that exist: they sum to one at the edges too. `blur` 0 is the plain
    cross-entropy.
    """
    exact = at_least_fp32(logits)
    bins = logits.shape[-1]
    radius = int(2.5 * blur + 0.999)
    offsets = torch.arange(-radius, radius + 1, device=logits.device)
    weights = torch.exp(-0.5 * (offsets / max(blur, 1e-6)) ** 2).to(exact.dtype)
    taps = places[..., None] + offsets
    present = ((taps >= 0) & (taps < bins)).to(exact.dtype) * weights
    present = present / present.sum(-1, keepdim=True)
    chosen = exact.gather(-1, taps.clamp(0, bins - 1))
    # Only the taps are read: there is no table of targets as large as the logits.
    return exact.logsumexp(-1) - (chosen * present).sum(-1)
