"""Owns what a masked transformer is told beside its tokens: texts, and the codes of a smaller picture.

What reads texts has two halves. `prepare(texts, keep)` makes `text` and `text_mask` of them, batch first and on the
CPU; where `keep` is False the whole row is masked, whatever its text says. The call with these two makes vectors
`(batch, symbols, text_dim)` of them, with what is trained, and tells which of the vectors are there.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from quintet.common.caches import default_folder
from quintet.config.text import PRETRAINED, TextConfig
from quintet.errors import UsageError
from quintet.nn.positions import EMBEDDING_SCALE, LearnedPositions
from quintet.nn.pretrained_text import PretrainedText
from quintet.nn.text import ByteTextEncoder, WordTextEncoder, mask_dropped
from quintet.nn.transformer import Transformer

Conditioning = Mapping[str, Tensor]
"""Batch first: `text` and `text_mask`, what a text becomes; `low`, the tokens of the smaller picture; `there`, which
tokens there are, where not all. What `MaskGit.precompute_conditioning` made has encoded texts and tokens instead."""

LOW_DEPTH = 2
"""Blocks of the transformer over low-resolution codes."""


def make_text_conditioning(config: TextConfig) -> TextConditioning | None:
    """What `config.text` names; None for a model without text."""
    if config.text == "none":
        return None
    if config.text == "classes":
        if config.classes is None:
            raise UsageError("model.text=classes needs model.classes where no data gives them")
        return ClassTable(config.classes, config.text_dim)
    if config.text.startswith(PRETRAINED):
        return FrozenText(config.text, config.text_dim, config.text_length, default_folder())
    if config.vector_dim is not None:
        return PrecomputedText(config.vector_dim, config.text_dim)
    reader = WordTextEncoder if config.text == "words" else ByteTextEncoder
    return reader(config.text_dim, config.text_depth, config.text_heads, config.text_length)


class ClassTable(nn.Module):
    """A text is the name of a class, and a class is a vector."""

    def __init__(self, names: Sequence[str], dim: int) -> None:
        super().__init__()
        self.numbers = {name: number for number, name in enumerate(names)}
        # Starts at the scale of the vectors that the other encoders make, which end in a norm.
        self.embedding = nn.Embedding(len(names), dim)

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        kept = [True] * len(texts) if keep is None else keep.tolist()
        ids = [self._number(text) if there else 0 for text, there in zip(texts, kept, strict=True)]
        return {
            "text": torch.tensor(ids, dtype=torch.int64)[:, None],
            "text_mask": torch.tensor(kept, dtype=torch.bool)[:, None],
        }

    def forward(self, text: Tensor, text_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.embedding(text), text_mask

    def _number(self, text: str) -> int:
        if text not in self.numbers:
            (nearest,) = difflib.get_close_matches(text, self.numbers, n=1, cutoff=0)
            raise UsageError(
                f"{text[:80]!r} is not one of the {len(self.numbers)} classes this model knows; "
                f"the nearest is {nearest!r}"
            )
        return self.numbers[text]


class FrozenText(nn.Module):
    """A frozen encoder, which is no part of the weights, and a trained layer from its width to the model's."""

    def __init__(self, reference: str, dim: int, max_length: int, cache: Path | None) -> None:
        super().__init__()
        self.encoder = PretrainedText(reference, cache, max_length)
        self.project = nn.Linear(self.encoder.dim, dim)

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        vectors, mask = self.encoder.embed(texts)
        return {"text": vectors, "text_mask": mask_dropped(mask, keep)}

    def forward(self, text: Tensor, text_mask: Tensor) -> tuple[Tensor, Tensor]:
        return _projected(text, self.project), text_mask


class PrecomputedText(nn.Module):
    """Embeddings of texts that somebody else has made, and a trained layer from their width to the model's."""

    def __init__(self, given_dim: int, dim: int) -> None:
        super().__init__()
        self.given_dim = given_dim
        self.project = nn.Linear(given_dim, dim)

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """Of no text at all: this reads none."""
        if any(texts) and (keep is None or keep.any()):
            raise UsageError("this model is told by text embeddings (model.text=vectors): it reads no text itself")
        return {
            "text": torch.zeros(len(texts), 1, self.given_dim),
            "text_mask": torch.zeros(len(texts), 1, dtype=torch.bool),
        }

    def forward(self, text: Tensor, text_mask: Tensor) -> tuple[Tensor, Tensor]:
        return _projected(text, self.project), text_mask


def _projected(vectors: Tensor, project: nn.Linear) -> Tensor:
    """Who makes embeddings chooses their scale; the model should not depend on it."""
    out: Tensor = project(F.layer_norm(vectors.to(project.weight.dtype), (project.in_features,)))
    return out


TextConditioning = ByteTextEncoder | WordTextEncoder | ClassTable | FrozenText | PrecomputedText


class LowResVectors(NamedTuple):
    """What low-resolution tokens become: a context `(batch, places, text_dim)`, and `(batch, tokens, dim)` to add."""

    context: Tensor
    covering: Tensor


class LowResolution(nn.Module):
    """The codes of a smaller picture, for a model of super-resolution (Chang et al. 2023, 2301.00704).

    They pass through a small transformer into the context, as in the paper. Besides, every token's input gets the
    embedding of the code that covers it: that code is the best evidence for it, and attention need not learn first
    which place lies over which.
    """

    cover: Tensor

    def __init__(
        self,
        low_res_grid: Sequence[int],
        low_res_num_codes: int,
        grid: Sequence[int],
        dim: int,
        text_dim: int,
        heads: int,
    ) -> None:
        super().__init__()
        if {len(low_res_grid), len(grid)} - {2, 3}:
            raise UsageError("model.grid and model.low_res_grid have rows and columns, and levels if there are any")
        self.low_res_grid, self.low_res_num_codes = tuple(low_res_grid), low_res_num_codes
        self.levels = math.prod(low_res_grid[2:])
        # The same code means something else at another level, so every level has rows of its own.
        self.embedding = nn.Embedding(self.levels * low_res_num_codes, text_dim)
        self.covering = nn.Embedding(self.levels * low_res_num_codes, dim)
        for table in (self.embedding, self.covering):
            nn.init.normal_(table.weight, std=EMBEDDING_SCALE)
        self.transformer = Transformer(
            text_dim,
            LOW_DEPTH,
            heads,
            text_dim // heads,
            positions=LearnedPositions(low_res_grid[:2], text_dim),
        )
        # Not saved: it follows from the grids.
        self.register_buffer("cover", covering_positions(low_res_grid, grid), persistent=False)

    def forward(self, low: Tensor) -> LowResVectors:
        """`low` is (batch, tokens of the low grid)."""
        self._check(low)
        levels = rearrange(low, "b (places levels) -> b places levels", levels=self.levels)
        ids = levels + self.low_res_num_codes * torch.arange(self.levels, device=low.device)
        context = self.transformer(self.embedding(ids).sum(2))
        return LowResVectors(context, self.covering(ids).sum(2)[:, self.cover])

    def _check(self, low: Tensor) -> None:
        expected = math.prod(self.low_res_grid)
        if low.dim() != 2 or low.shape[1] != expected:
            raise UsageError(
                f"low-resolution codes of shape {tuple(low.shape)} are not rows of {expected} "
                f"(model.low_res_grid={self.low_res_grid})"
            )
        # Not on a GPU: reading from it would hold up every step.
        if (
            low.device.type == "cpu"
            and low.numel()
            and not 0 <= int(low.min()) <= int(low.max()) < self.low_res_num_codes
        ):
            raise UsageError(
                f"low-resolution codes from {int(low.min())} to {int(low.max())} are not all in the vocabulary "
                f"of model.low_res_num_codes={self.low_res_num_codes}"
            )


def covering_positions(low_res_grid: Sequence[int], grid: Sequence[int]) -> Tensor:
    """For each token of a grid, the place of the low grid under its centre; levels lie on one place."""
    rows, columns = (
        (2 * torch.arange(size) + 1) * low // (2 * size) for low, size in zip(low_res_grid[:2], grid[:2], strict=True)
    )
    places = rows[:, None] * low_res_grid[1] + columns
    return places.flatten().repeat_interleave(math.prod(grid[2:]))
