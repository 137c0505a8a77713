"""Owns the text encoder that reads words: each one vector, looked up by its spelling, then a small transformer.

It needs neither a download nor a list of words. A word is the row of a table that its hash points to, and as much again
of the rows that its pieces of three letters point to, so that `stars` begins near `star`, and a word that was never
trained on is not nothing (Bojanowski et al. 2017, 1607.04606). Bytes have to be spelled together before they mean
anything, which takes thousands of steps where little depends on a word.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from quintet.common.rng import seed_from
from quintet.errors import UsageError
from quintet.nn.positions import EMBEDDING_SCALE
from quintet.nn.rotary import Rotary
from quintet.nn.text import kept_rows, padded_length
from quintet.nn.transformer import Transformer

ROWS = 8192
"""Of the table; the first one stands for nothing."""
PIECE = 3
MOST_PIECES = 12
"""Of a word: itself, and then as many pieces as there is room for."""


class WordTextEncoder(nn.Module):
    """Texts to `(batch, words, dim)` and which of them are not padding."""

    def __init__(self, dim: int, depth: int, heads: int, max_length: int = 128) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise UsageError(f"A text encoder's dim must be a multiple of twice its heads, not {dim} with {heads}.")
        self.max_length = max_length
        self.embedding = nn.Embedding(ROWS, dim, padding_idx=0)
        nn.init.normal_(self.embedding.weight[1:], std=EMBEDDING_SCALE)
        positions = Rotary((max_length,), dim // heads)
        self.transformer = Transformer(dim, depth, heads, dim // heads, positions=positions)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What `prepare` made, through the transformer; the mask comes back with it."""
        return self.transformer(self.look_up(ids), mask), mask

    def look_up(self, ids: Tensor) -> Tensor:
        """The vector of each word by itself, from its rows `(batch, words, pieces)`."""
        rows = self.embedding(ids)
        pieces = (ids[..., 1:] > 0).sum(-1, keepdim=True).clamp(min=1)
        # A sum of independent rows grows with the root of their number.
        vectors: Tensor = rows[..., 0, :] + rows[..., 1:, :].sum(-2) / pieces.sqrt()
        return vectors

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """What `forward` takes, as the conditioning `text` and `text_mask`. An empty text has a word too: its end."""
        found = [[*words_of(text)[: self.max_length - 1], ""] for text in texts]
        width = padded_length(max(map(len, found), default=1), self.max_length)
        ids = torch.zeros(len(found), width, MOST_PIECES, dtype=torch.int64)
        for row, words in zip(ids, found, strict=True):
            row[: len(words)] = torch.tensor([_rows_of(word) for word in words])
        mask = torch.arange(width) < torch.tensor([len(words) for words in found])[:, None]
        return {"text": ids, "text_mask": kept_rows(mask, keep)}


def words_of(text: str) -> list[str]:
    """Words and signs, whatever their case; scripts without spaces make few and long ones.

    Accents and vowel signs belong to their letters, whether they are written as one with them or not; what is no
    Unicode is a question mark.
    """
    sound = text.encode("utf-8", "replace").decode()
    words: list[str] = []
    inside = False
    for letter in unicodedata.normalize("NFC", sound.casefold()):
        belongs = letter == "_" or letter.isalnum() or unicodedata.category(letter).startswith("M")
        if belongs and inside:
            words[-1] += letter
        elif not letter.isspace():
            words.append(letter)
        inside = belongs
    return words


@functools.lru_cache(maxsize=65_536)
def _rows_of(word: str) -> tuple[int, ...]:
    """Of the table: that of the word, then those of its pieces, then nothing."""
    edged = f"<{word}>"
    pieces = [edged[place : place + PIECE] for place in range(len(edged) - PIECE + 1)] if len(word) > 1 else []
    rows = [_row("word", word), *(_row("piece", piece) for piece in pieces)][:MOST_PIECES]
    return (*rows, *[0] * (MOST_PIECES - len(rows)))


def _row(kind: str, spelling: str) -> int:
    return 1 + seed_from(kind, spelling) % (ROWS - 1)
