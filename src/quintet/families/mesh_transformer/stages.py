"""The transformers over meshes: `CoarseFine`, in two stages over faces and over the tokens of a face, and `Flat`.

The coarse stage sees a face as one vector, so its sequence is six or nine times shorter than the tokens. The fine stage
sees the tokens of one face and the coarse state of the faces before it, so its attention covers few positions. `Flat`
is one causal transformer over all tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.nn.attention import KVCache
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions, Rotary
from quintet.nn.transformer import Transformer


def text_transformer(config: MeshTransformerModelConfig, max_length: int) -> Transformer:
    """A causal transformer over up to `max_length` positions, with cross-attention to the conditioning."""
    head_dim = config.dim // config.heads
    return Transformer(
        config.dim,
        config.depth,
        config.heads,
        head_dim,
        context_dim=config.context_dim,
        dropout=config.dropout,
        causal=True,
        positions=Rotary((max_length,), head_dim),
    )


class Positions(NamedTuple):
    """The predicted positions of a batch, as the stages of its model need them."""

    tokens: Tensor
    """(positions,), their flat indices: among the tokens of `faces`, or of all rows."""
    faces: Tensor | None = None
    """The flat indices of faces with a predicted position, over (batch, faces + 1)."""
    states: Tensor | None = None
    """Of woven meshes: the state (batch, tokens + 1, FEATURES) in which each token is predicted."""


class CoarseFine(nn.Module):
    """Code embeddings of faces to the output vectors of the predicted positions."""

    def __init__(self, config: MeshTransformerModelConfig, tokens_per_face: int) -> None:
        super().__init__()
        dim = config.dim
        self.tokens_per_face = tokens_per_face
        self.to_face = nn.Linear(tokens_per_face * dim, dim)
        self.coarse = text_transformer(config, config.max_faces + 1)
        self.fine = Transformer(
            dim,
            config.fine_depth,
            config.heads,
            dim // config.heads,
            dropout=config.dropout,
            causal=True,
            positions=LearnedPositions((tokens_per_face,), dim),
        )

    def forward(
        self,
        codes: Tensor,
        start: Tensor,
        face_count: Tensor,
        positions: Positions,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Vectors (positions, dim) of the predicted positions, row by row.

        `codes` (batch, faces, tokens_per_face, dim) follow `start` (batch, dim); `face_count` (batch, dim) is added to
        every input of the coarse stage. Padding needs no mask: it is behind all predicted positions.
        """
        faces = self.to_face(codes.flatten(2))
        states = self.coarse(
            torch.cat([start[:, None], faces], dim=1) + face_count[:, None], context=context, context_mask=context_mask
        )
        # The faces with predicted positions of all rows, as one batch.
        assert positions.faces is not None
        before = F.pad(codes[:, :, :-1], (0, 0, 1, 0, 0, 1))
        states, before = (each.flatten(0, 1).index_select(0, positions.faces) for each in (states, before))
        vectors: Tensor = self.fine(states[:, None] + before)
        return vectors.flatten(0, 1).index_select(0, positions.tokens)

    @staticmethod
    def positions(loss_mask: Tensor) -> Positions:
        """The positions in a mask (batch, faces + 1, tokens_per_face); on a GPU this waits for the mask."""
        by_face = loss_mask.flatten(0, 1)
        faces = by_face.any(-1).nonzero()[:, 0]
        return Positions(by_face.index_select(0, faces).flatten().nonzero()[:, 0], faces)

    def begin(
        self,
        max_faces: int,
        start: Tensor,
        face_count: Tensor,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> CoarseFineState:
        """The state of decoding up to `max_faces`."""
        batch = len(start)
        return CoarseFineState(
            self,
            start[:, None],
            face_count[:, None],
            self.coarse.start(batch, max_faces + 1, context, context_mask),
            self.fine.start(batch, self.tokens_per_face),
        )


class CoarseFineState:
    """KV-cached decoding: the coarse stage advances once per face; the fine stage advances at every token and restarts
    at every face."""

    def __init__(self, model: CoarseFine, start: Tensor, face_count: Tensor, coarse: KVCache, fine: KVCache) -> None:
        self.model = model
        self.new_faces = start  # not yet processed by the coarse stage
        self.face_count = face_count
        self.coarse, self.fine = coarse, fine
        self.state = start
        self.pending = start[:, :0]  # codes of the incomplete last face

    def advance(self, codes: Tensor) -> Tensor:
        """The output vectors (batch, dim) after new code embeddings (batch, new, dim)."""
        size = self.model.tokens_per_face
        pending = codes if not self.pending.shape[1] else torch.cat([self.pending, codes], dim=1)
        complete = pending.shape[1] // size
        if complete:
            faces = self.model.to_face(pending[:, : complete * size].reshape(len(pending), complete, -1))
            self.new_faces = torch.cat([self.new_faces, faces], dim=1)
            pending = pending[:, complete * size :]
        self.pending = pending
        if self.new_faces.shape[1]:
            self.state = self.model.coarse.step(self.new_faces + self.face_count, self.coarse)[:, -1:]
            self.new_faces = self.new_faces[:, :0]
            self.fine.rewind()
            new = F.pad(pending, (0, 0, 1, 0))
        else:
            new = codes
        return self.model.fine.step(self.state + new, self.fine)[:, -1]

    def select(self, indices: Tensor) -> None:
        """Keep only these rows of the batch."""
        self.new_faces, self.face_count, self.state, self.pending = (
            tensor[indices] for tensor in (self.new_faces, self.face_count, self.state, self.pending)
        )
        self.coarse.select(indices)
        self.fine.select(indices)


class Flat(nn.Module):
    """Code embeddings of faces to the output vectors of the predicted positions.

    Rotary embeddings encode the order of tokens; learned embeddings encode the position within a face.
    """

    def __init__(self, config: MeshTransformerModelConfig, tokens_per_face: int) -> None:
        super().__init__()
        self.tokens_per_face = tokens_per_face
        self.places = nn.Parameter(torch.randn(tokens_per_face, config.dim) * EMBEDDING_SCALE)
        self.transformer = text_transformer(config, config.max_faces * tokens_per_face + 1)

    def forward(
        self,
        codes: Tensor,
        start: Tensor,
        face_count: Tensor,
        positions: Positions,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """Vectors (positions, dim), as `CoarseFine.forward`; `face_count` (batch, dim) is added to every input."""
        row = torch.cat([start[:, None], codes.flatten(1, 2)], dim=1)
        x = row + self.position_vectors(0, row.shape[1]) + face_count[:, None]
        vectors: Tensor = self.transformer(x, context=context, context_mask=context_mask)
        return vectors.flatten(0, 1).index_select(0, positions.tokens)

    @staticmethod
    def positions(loss_mask: Tensor) -> Positions:
        """As `CoarseFine.positions`. A row is the start and all tokens of its faces."""
        _, faces, tokens_per_face = loss_mask.shape
        rows = loss_mask.flatten(1)[:, : (faces - 1) * tokens_per_face + 1]
        return Positions(rows.flatten().nonzero()[:, 0])

    def begin(
        self,
        max_faces: int,
        start: Tensor,
        face_count: Tensor,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> FlatState:
        """The state of decoding up to `max_faces`."""
        max_length = max_faces * self.tokens_per_face + 1
        cache = self.transformer.start(len(start), max_length, context, context_mask)
        return FlatState(self, start[:, None], face_count[:, None], cache)

    def position_vectors(self, first: int, last: int) -> Tensor:
        """The embeddings (last - first, dim) of the positions within a face, from `first` to before `last` of a row."""
        indices = torch.arange(first, last, device=self.places.device) % self.tokens_per_face
        return nn.functional.embedding(indices, self.places)


class FlatState:
    """KV-cached decoding, one transformer step per token."""

    def __init__(self, model: Flat, start: Tensor, face_count: Tensor, cache: KVCache) -> None:
        self.model = model
        self.start = start  # empty after the first step
        self.face_count = face_count
        self.cache = cache

    def advance(self, codes: Tensor) -> Tensor:
        """The output vectors (batch, dim) after new code embeddings (batch, new, dim)."""
        new = torch.cat([self.start, codes], dim=1)
        self.start = self.start[:, :0]
        positions = self.model.position_vectors(self.cache.length, self.cache.length + new.shape[1])
        return self.model.transformer.step(new + positions + self.face_count, self.cache)[:, -1]

    def select(self, indices: Tensor) -> None:
        """Keep only these rows of the batch."""
        self.start, self.face_count = self.start[indices], self.face_count[indices]
        self.cache.select(indices)
