"""Owns the transformer in one stage: all tokens of all faces in one causal row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quintet.families.mesh_transformer.config import MeshTransformerModelConfig
from quintet.nn.attention import KVCache
from quintet.nn.positions import EMBEDDING_SCALE, Rotary
from quintet.nn.transformer import Transformer


class Flat(nn.Module):
    """Vectors of the codes of faces to the last vectors of the places where a code is predicted.

    Rotary positions tell the order of tokens; a table tells which place of a face is to be predicted.
    """

    def __init__(self, config: MeshTransformerModelConfig, tokens_per_face: int) -> None:
        super().__init__()
        head_dim = config.dim // config.heads
        self.tokens_per_face = tokens_per_face
        self.max_length = config.max_faces * tokens_per_face + 1
        self.places = nn.Parameter(torch.randn(tokens_per_face, config.dim) * EMBEDDING_SCALE)
        self.transformer = Transformer(
            config.dim,
            config.depth,
            config.heads,
            head_dim,
            context_dim=None if config.text == "none" else config.text_dim,
            dropout=config.dropout,
            causal=True,
            positions=Rotary((self.max_length,), head_dim),
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
