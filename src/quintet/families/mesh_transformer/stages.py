"""The transformer over meshes: in two stages, a coarse one over faces and a fine one over the tokens of each face; or
flat, all tokens of all faces in one causal row.

The coarse stage sees a face as one vector, so it runs over a sixth or a ninth of the tokens; the fine stage sees a face
and what the coarse one knows of those before it, so its attention is over a handful of places.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.nn.attention import KVCache
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions, Rotary
from quintet.nn.transformer import Transformer


def _told_transformer(config: MeshTransformerModelConfig, places: int) -> Transformer:
    """Over a row of so many places, each seeing those before it and the text."""
    head_dim = config.dim // config.heads
    return Transformer(
        config.dim,
        config.depth,
        config.heads,
        head_dim,
        context_dim=None if config.text == "none" else config.text_dim,
        dropout=config.dropout,
        causal=True,
        positions=Rotary((places,), head_dim),
    )


class CoarseFine(nn.Module):
    """Vectors of the codes of faces to the last vectors of the places where a code is predicted."""

    def __init__(self, config: MeshTransformerModelConfig, tokens_per_face: int) -> None:
        super().__init__()
        dim = config.dim
        self.tokens_per_face = tokens_per_face
        self.max_faces = config.max_faces
        self.to_face = nn.Linear(tokens_per_face * dim, dim)
        self.coarse = _told_transformer(config, config.max_faces + 1)
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
        told: Tensor,
        wanted: Tensor,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """`(places, dim)`, the places that are `wanted` (batch, faces + 1, tokens of a face), row by row.

        `codes` (batch, faces, tokens of a face, dim) stand behind `start` (batch, dim); `told` (batch, dim) is added
        to every input of the coarse stage. No padding needs a mask: it comes after all that is wanted.
        """
        faces = self.to_face(codes.flatten(2))
        states = self.coarse(
            torch.cat([start[:, None], faces], dim=1) + told[:, None], context=context, context_mask=context_mask
        )
        # The faces that count, in one batch, whichever row they are of.
        count = wanted.any(-1)
        before = F.pad(codes[:, :, :-1], (0, 0, 1, 0, 0, 1))
        vectors: Tensor = self.fine(states[count][:, None] + before[count])
        return vectors[wanted[count]]

    def begin(
        self, start: Tensor, told: Tensor, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> CoarseFineRows:
        batch = len(start)
        return CoarseFineRows(
            self,
            start[:, None],
            told[:, None],
            self.coarse.start(batch, self.max_faces + 1, context, context_mask),
            self.fine.start(batch, self.tokens_per_face),
        )


class CoarseFineRows:
    """Rows in the making: the coarse stage goes on once a face, the fine one at every token and anew in every face."""

    def __init__(self, model: CoarseFine, start: Tensor, told: Tensor, coarse: KVCache, fine: KVCache) -> None:
        self.model = model
        self.unseen = start
        self.told = told
        self.coarse, self.fine = coarse, fine
        self.state = start
        self.pending = start[:, :0]

    def advance(self, codes: Tensor) -> Tensor:
        """The last vectors (batch, dim) after codes (batch, new, dim)."""
        size = self.model.tokens_per_face
        pending = codes if not self.pending.shape[1] else torch.cat([self.pending, codes], dim=1)
        whole = pending.shape[1] // size
        if whole:
            faces = self.model.to_face(pending[:, : whole * size].reshape(len(pending), whole, -1))
            self.unseen = torch.cat([self.unseen, faces], dim=1)
            pending = pending[:, whole * size :]
        self.pending = pending
        if self.unseen.shape[1]:
            self.state = self.model.coarse.step(self.unseen + self.told, self.coarse)[:, -1:]
            self.unseen = self.unseen[:, :0]
            self.fine.rewind()
            new = F.pad(pending, (0, 0, 1, 0))
        else:
            new = codes
        return self.model.fine.step(self.state + new, self.fine)[:, -1]

    def select(self, numbers: Tensor) -> None:
        self.unseen, self.told, self.state, self.pending = (
            tensor[numbers] for tensor in (self.unseen, self.told, self.state, self.pending)
        )
        self.coarse.select(numbers)
        self.fine.select(numbers)


class Flat(nn.Module):
    """Vectors of the codes of faces to the last vectors of the places where a code is predicted.

    Rotary positions tell the order of tokens; a table tells which place of a face is to be predicted.
    """

    def __init__(self, config: MeshTransformerModelConfig, tokens_per_face: int) -> None:
        super().__init__()
        self.tokens_per_face = tokens_per_face
        self.max_length = config.max_faces * tokens_per_face + 1
        self.places = nn.Parameter(torch.randn(tokens_per_face, config.dim) * EMBEDDING_SCALE)
        self.transformer = _told_transformer(config, self.max_length)

    def forward(
        self,
        codes: Tensor,
        start: Tensor,
        told: Tensor,
        wanted: Tensor,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        """As `CoarseFine` does it; `told` is added to every input."""
        row = torch.cat([start[:, None], codes.flatten(1, 2)], dim=1)
        x = row + self.places_between(0, row.shape[1]) + told[:, None]
        vectors: Tensor = self.transformer(x, context=context, context_mask=context_mask)
        return vectors[wanted.flatten(1)[:, : row.shape[1]]]

    def begin(
        self, start: Tensor, told: Tensor, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> FlatRows:
        cache = self.transformer.start(len(start), self.max_length, context, context_mask)
        return FlatRows(self, start[:, None], told[:, None], cache)

    def places_between(self, first: int, last: int) -> Tensor:
        """The vectors of the places from `first` to before `last` of a row."""
        numbers = torch.arange(first, last, device=self.places.device) % self.tokens_per_face
        return nn.functional.embedding(numbers, self.places)


class FlatRows:
    """Rows in the making."""

    def __init__(self, model: Flat, start: Tensor, told: Tensor, cache: KVCache) -> None:
        self.model = model
        self.unseen = start
        self.told = told
        self.cache = cache

    def advance(self, codes: Tensor) -> Tensor:
        """The last vectors (batch, dim) after codes (batch, new, dim)."""
        new = torch.cat([self.unseen, codes], dim=1)
        self.unseen = self.unseen[:, :0]
        places = self.model.places_between(self.cache.length, self.cache.length + new.shape[1])
        return self.model.transformer.step(new + places + self.told, self.cache)[:, -1]

    def select(self, numbers: Tensor) -> None:
        self.unseen, self.told = self.unseen[numbers], self.told[numbers]
        self.cache.select(numbers)
