"""Text encoders that need no download, trained with the model: UTF-8 bytes or words through a small transformer; and
texts as the tokens of a tokenizer of `transformers` that lies in a folder.

Bytes: a text is its bytes between a start and an end symbol, so the empty text has two symbols. Batches are padded to a
multiple of eight, so that there are few shapes; what a text becomes does not depend on its neighbours.

Words need no list of words. A word is the row of a table that its hash points to, and as much again of the rows that
its pieces of three letters point to, so that `stars` begins near `star`, and a word that was never trained on is not
nothing (Bojanowski et al. 2017, 1607.04606). Bytes have to be spelled together before they mean anything, which takes
thousands of steps where little depends on a word.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quintet.common.rng import seed_from
from quintet.errors import UsageError
from quintet.nn.positions import EMBEDDING_SCALE, Rotary
from quintet.nn.transformer import Transformer
from quintet.nn.transformers_folder import load_part, load_transformers

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
        return {"text": ids, "text_mask": mask_dropped(mask, keep)}

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


def mask_dropped(mask: Tensor, keep: Tensor | None) -> Tensor:
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
        return {"text": ids, "text_mask": mask_dropped(mask, keep)}


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


class TokenizerFolder:
    """A tokenizer: texts to padded rows of ids. Not a module; it is read when the first text comes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).expanduser()

    def __deepcopy__(self, memo: dict[int, Any]) -> TokenizerFolder:
        """Itself: it never changes."""
        return self

    @property
    def vocabulary(self) -> int:
        """How many ids there are, the padding's included, which is the last."""
        return len(self._tokenizer) + 1

    def encode(self, texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids `(batch, length)`, which are not padding, and which texts, `(batch,)`, had more than fits."""
        most = min(max_length, self._tokenizer.model_max_length)
        whole = kept = self._tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
        if any(len(row) > most for row in whole):
            kept = self._tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
        width = padded_length(max((len(row) for row in kept), default=1) or 1, max_length)
        ids = torch.full((len(kept), width), self.vocabulary - 1, dtype=torch.int64)
        for place, row in zip(ids, kept, strict=True):
            place[: len(row)] = torch.tensor(row, dtype=torch.int64)
        mask = torch.arange(width) < torch.tensor([len(row) for row in kept], dtype=torch.int64)[:, None]
        cut = torch.tensor([len(row) < len(all_of_it) for row, all_of_it in zip(kept, whole, strict=True)])
        return ids, mask, cut.bool()

    @cached_property
    def _tokenizer(self) -> Any:
        if not self.folder.is_dir():
            raise UsageError(f"text: there is no folder {self.folder} with a tokenizer")
        load_transformers("text: tokens:…")
        return load_part(self.folder, "tokenizer", "AutoTokenizer")
