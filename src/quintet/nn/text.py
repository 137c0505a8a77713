"""Owns the text encoder that needs no download: UTF-8 bytes through a small transformer, trained with the model.

A text is its bytes between a start and an end symbol, so the empty text has two symbols. Batches are padded to a
multiple of eight, so that there are few shapes; what a text becomes does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.positions import EMBEDDING_SCALE
from quintet.nn.rotary import Rotary
from quintet.nn.transformer import Transformer

START, END, PADDING = 256, 257, 258
NUM_SYMBOLS = 259
SHORTEST_MAX_LENGTH = 6
"""Room for the two symbols and any one character."""


class ByteTextEncoder(nn.Module):
    """Texts to `(batch, symbols, dim)` and which of them are not padding."""

    def __init__(self, dim: int, depth: int, heads: int, max_length: int = 256, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise UsageError(f"A text encoder's dim must be a multiple of twice its heads, not {dim} with {heads}.")
        _check_length(max_length)
        self.dim = dim
        self.max_length = max_length
        self.embedding = nn.Embedding(NUM_SYMBOLS, dim)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        positions = Rotary((max_length,), dim // heads)
        self.transformer = Transformer(dim, depth, heads, dim // heads, dropout=dropout, positions=positions)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What `encode_bytes` made, through the transformer; the mask comes back with it."""
        return self.transformer(self.embedding(ids), mask), mask

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """What `forward` takes, as the conditioning `text` and `text_mask`."""
        ids, mask, _ = encode_bytes(texts, self.max_length)
        return {"text": ids, "text_mask": kept_rows(mask, keep)}

    def embed(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Texts through the transformer, on its own device."""
        ids, mask, _ = encode_bytes(texts, self.max_length)
        device = self.embedding.weight.device
        vectors, mask = self(ids.to(device), mask.to(device))
        return vectors, mask


def encode_bytes(texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Symbols `(batch, length)`, which are not padding, and which texts, `(batch,)`, had more than fits.

    `max_length` counts the start and end symbols. A text is cut between characters, never inside one.
    """
    _check_length(max_length)
    whole = [text.encode("utf-8", errors="replace") for text in texts]
    kept = [_cut(raw, max_length - 2) for raw in whole]
    lengths = torch.tensor([len(raw) + 2 for raw in kept], dtype=torch.int64)
    width = padded_length(max((len(raw) + 2 for raw in kept), default=2), max_length)
    ids = torch.full((len(kept), width), PADDING, dtype=torch.int64)
    for row, raw in zip(ids, kept, strict=True):
        row[: len(raw) + 2] = torch.tensor([START, *raw, END])
    mask = torch.arange(width) < lengths[:, None]
    cut = torch.tensor(
        [len(raw) < len(all_of_it) for raw, all_of_it in zip(kept, whole, strict=True)], dtype=torch.bool
    )
    return ids, mask, cut


def kept_rows(mask: Tensor, keep: Tensor | None) -> Tensor:
    """The mask without the rows that are dropped, which is not the same as an empty text."""
    return mask if keep is None else mask & keep.to(mask.device)[:, None]


def padded_length(longest: int, most: int) -> int:
    """The next multiple of eight, if there is room for it."""
    return min(-(-longest // 8) * 8, most)


def _cut(raw: bytes, most: int) -> bytes:
    if len(raw) <= most:
        return raw
    while raw[most] & 0b1100_0000 == 0b1000_0000:  # a byte inside a character cannot be the first one left out
        most -= 1
    return raw[:most]


def _check_length(max_length: int) -> None:
    if max_length < SHORTEST_MAX_LENGTH:
        raise UsageError(f"A text encoder needs a max_length of at least {SHORTEST_MAX_LENGTH}, not {max_length}.")
