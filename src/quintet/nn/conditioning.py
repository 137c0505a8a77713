"""Conditioning of a masked transformer: text encoders, and low-resolution codes for super-resolution.

A text encoder has two parts. `prepare(texts, keep)` turns texts into the tensors `text` and `text_mask`, batch first
and on the CPU; where `keep` is False the full row is masked, whatever its text. `preparation` is the same without the
module, for data workers. `forward(text, text_mask)` has the trained parameters: it returns vectors
`(batch, symbols, text_dim)` and their mask `(batch, symbols)`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from functools import partial
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
from quintet.nn.text import ByteTextEncoder, TextPreparation, WordTextEncoder, mask_dropped
from quintet.nn.transformer import Transformer

Conditioning = Mapping[str, Tensor]
"""Named tensors, batch first: `text` and `text_mask` of a text encoder; `low`, low-resolution tokens; `valid_mask`, the
valid tokens of rows that end early; `context` (batch, symbols, text_dim) and `context_mask`, further context that needs
no encoder. `MaskGit.precompute_conditioning` replaces them by encoded tensors."""

LOW_DEPTH = 2
"""Number of blocks of the transformer over low-resolution codes."""


def make_text_conditioning(config: TextConfig) -> TextConditioning | None:
    """The text encoder that `config.text` names; None for a model without text."""
    if config.text == "none":
        return None
    if config.text == "classes":
        if config.classes is None:
            raise UsageError("model.text=classes needs model.classes if there are no captions to take them from")
        return ClassTable(config.classes, config.text_dim)
    if config.text.startswith(PRETRAINED):
        return FrozenText(config.text, config.text_dim, config.text_length, default_folder())
    if config.vector_dim is not None:
        return PrecomputedText(config.vector_dim, config.text_dim)
    encoder = WordTextEncoder if config.text == "words" else ByteTextEncoder
    return encoder(config.text_dim, config.text_depth, config.text_heads, config.text_length)


class ClassTable(nn.Module):
    """Class conditioning: a text is the name of a class, and each class has an embedding."""

    def __init__(self, names: Sequence[str], dim: int) -> None:
        super().__init__()
        self.numbers = {name: number for number, name in enumerate(names)}
        # Initialised at the scale of the other encoders, whose output is normalised.
        self.embedding = nn.Embedding(len(names), dim)

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        return _prepare_classes(self.numbers, texts, keep)

    @property
    def preparation(self) -> TextPreparation:
        return partial(_prepare_classes, self.numbers)

    def forward(self, text: Tensor, text_mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.embedding(text), text_mask


def _prepare_classes(numbers: Mapping[str, int], texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
    keep_list = [True] * len(texts) if keep is None else keep.tolist()
    ids = [_class_number(numbers, text) if kept else 0 for text, kept in zip(texts, keep_list, strict=True)]
    return {
        "text": torch.tensor(ids, dtype=torch.int64)[:, None],
        "text_mask": torch.tensor(keep_list, dtype=torch.bool)[:, None],
    }


def _class_number(numbers: Mapping[str, int], text: str) -> int:
    if text not in numbers:
        (nearest,) = difflib.get_close_matches(text, numbers, n=1, cutoff=0)
        raise UsageError(
            f"{text[:80]!r} is not one of the {len(numbers)} classes of this model; did you mean {nearest!r}?"
        )
    return numbers[text]


class FrozenText(nn.Module):
    """A frozen text encoder, which is not part of the state dict, and a trained projection to `dim`."""

    def __init__(self, reference: str, dim: int, max_length: int, cache: Path | None) -> None:
        super().__init__()
        self.encoder = PretrainedText(reference, cache, max_length)
        self.project = nn.Linear(self.encoder.dim, dim)

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        vectors, mask = self.encoder.embed(texts)
        return {"text": vectors, "text_mask": mask_dropped(mask, keep)}

    @property
    def preparation(self) -> None:
        """None: every data worker would have to load the encoder."""
        return None

    def forward(self, text: Tensor, text_mask: Tensor) -> tuple[Tensor, Tensor]:
        return _projected(text, self.project), text_mask


class PrecomputedText(nn.Module):
    """Precomputed text embeddings of `input_dim` (model.text=vectors), and a trained projection to `dim`."""

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.project = nn.Linear(input_dim, dim)

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """Only for dropped or empty texts: this model cannot encode texts."""
        return _prepare_no_texts(self.input_dim, texts, keep)

    @property
    def preparation(self) -> TextPreparation:
        return partial(_prepare_no_texts, self.input_dim)

    def forward(self, text: Tensor, text_mask: Tensor) -> tuple[Tensor, Tensor]:
        return _projected(text, self.project), text_mask


def _prepare_no_texts(input_dim: int, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
    if any(texts) and (keep is None or keep.any()):
        raise UsageError("this model takes text embeddings (model.text=vectors); it cannot encode texts")
    return {
        "text": torch.zeros(len(texts), 1, input_dim),
        "text_mask": torch.zeros(len(texts), 1, dtype=torch.bool),
    }


def embeddings_as_text(
    encoder: nn.Module | None, vectors: Tensor, mask: Tensor, keep: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors of `prepare` for text embeddings (batch, words, dim) with `mask` (batch, words)."""
    if not isinstance(encoder, FrozenText | PrecomputedText):
        raise UsageError("text embeddings need model.text=vectors, or the encoder that made them (model.text=hf:…)")
    if vectors.shape[-1] != encoder.project.in_features:
        raise UsageError(
            f"text embeddings of dimension {vectors.shape[-1]} do not fit this model, which takes "
            f"{encoder.project.in_features}"
        )
    return {"text": vectors, "text_mask": mask_dropped(mask, keep)}


def _projected(vectors: Tensor, project: nn.Linear) -> Tensor:
    """Projected embeddings, normalised first: encoders differ in their scale."""
    out: Tensor = project(F.layer_norm(vectors.to(project.weight.dtype), (project.in_features,)))
    return out


TextConditioning = ByteTextEncoder | WordTextEncoder | ClassTable | FrozenText | PrecomputedText


class LowResVectors(NamedTuple):
    """Encoded low-resolution tokens: a context `(batch, positions, text_dim)`, and `(batch, tokens, dim)` to add."""

    context: Tensor
    per_token: Tensor


class LowResolution(nn.Module):
    """Encoder of low-resolution codes for a super-resolution model (Chang et al. 2023, 2301.00704).

    A small transformer encodes them for the context, as in the paper. In addition, the input of every token gets the
    embedding of the low-resolution code at its position, so that attention need not learn the correspondence first.
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
            raise UsageError(
                "model.grid and model.low_res_grid need rows and columns, and for a residual quantizer also the number "
                "of quantizers"
            )
        self.low_res_grid, self.low_res_num_codes = tuple(low_res_grid), low_res_num_codes
        self.levels = math.prod(low_res_grid[2:])
        # Codes of different quantizers have different embeddings.
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
        # Not saved: determined by the grids.
        self.register_buffer("cover", covering_positions(low_res_grid, grid), persistent=False)

    def forward(self, low: Tensor) -> LowResVectors:
        """`low` is (batch, low-resolution tokens)."""
        self._check(low)
        levels = rearrange(low, "b (positions levels) -> b positions levels", levels=self.levels)
        ids = levels + self.low_res_num_codes * torch.arange(self.levels, device=low.device)
        context = self.transformer(self.embedding(ids).sum(2))
        return LowResVectors(context, self.covering(ids).sum(2)[:, self.cover])

    def _check(self, low: Tensor) -> None:
        expected = math.prod(self.low_res_grid)
        if low.dim() != 2 or low.shape[1] != expected:
            raise UsageError(
                f"low-resolution codes of shape {tuple(low.shape)} do not have {expected} codes per row "
                f"(model.low_res_grid={self.low_res_grid})"
            )
        # Not on a GPU: it would synchronise in every step.
        if (
            low.device.type == "cpu"
            and low.numel()
            and not 0 <= int(low.min()) <= int(low.max()) < self.low_res_num_codes
        ):
            raise UsageError(
                f"low-resolution codes from {int(low.min())} to {int(low.max())} are out of range for "
                f"model.low_res_num_codes={self.low_res_num_codes}"
            )


def covering_positions(low_res_grid: Sequence[int], grid: Sequence[int]) -> Tensor:
    """For each token of a grid, the index of the low-resolution position at its centre, (tokens,)."""
    rows, columns = (
        (2 * torch.arange(size) + 1) * low // (2 * size) for low, size in zip(low_res_grid[:2], grid[:2], strict=True)
    )
    positions = rows[:, None] * low_res_grid[1] + columns
    return positions.flatten().repeat_interleave(math.prod(grid[2:]))
