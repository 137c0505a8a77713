"""Text encoders that are trained with the model: UTF-8 bytes or words through a small transformer; and tokenizers of
`transformers` from a local folder.

Bytes: a text is its UTF-8 bytes between a start and an end symbol, so the empty text has two symbols. Batches are
padded to a multiple of eight, to limit the number of shapes; the encoding of a text does not depend on the batch.

Words need no vocabulary. The embedding of a word is the table row selected by its hash plus those of its character
trigrams, so that `stars` starts near `star` and an unknown word has a useful embedding (Bojanowski et al. 2017,
1607.04606). A byte encoder has to learn to combine bytes into words first, which takes thousands of steps.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property, partial
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
TextPreparation = Callable[[Sequence[str], Tensor | None], dict[str, Tensor]]
"""`prepare` of a text encoder without its modules, which data workers can receive."""

MIN_MAX_LENGTH = 6
"""Two symbols and one UTF-8 character of any length."""


class ByteTextEncoder(nn.Module):
    """UTF-8 bytes through a transformer: vectors `(batch, symbols, dim)` and their mask `(batch, symbols)`."""

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
        """`ids` and `mask` `(batch, symbols)` from `encode_bytes`; returns vectors and the same mask."""
        return self.transformer(self.embedding(ids), mask), mask

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """The input of `forward`, as `text` and `text_mask`."""
        return prepare_bytes(self.max_length, texts, keep)

    @property
    def preparation(self) -> TextPreparation:
        return partial(prepare_bytes, self.max_length)

    def embed(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode texts on the device of the model."""
        ids, mask, _ = encode_bytes(texts, self.max_length)
        device = self.embedding.weight.device
        vectors, mask = self(ids.to(device), mask.to(device))
        return vectors, mask


def prepare_bytes(max_length: int, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
    """Symbols of texts, as `text`, and their mask, as `text_mask`."""
    ids, mask, _ = encode_bytes(texts, max_length)
    return {"text": ids, "text_mask": mask_dropped(mask, keep)}


def encode_bytes(texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Symbols `(batch, length)`, their mask, and which texts `(batch,)` were truncated.

    `max_length` includes the start and end symbols. A text is truncated between characters, never inside one.
    """
    _check_length(max_length)
    full = [text.encode("utf-8", errors="replace") for text in texts]
    kept = [_truncate(raw, max_length - 2) for raw in full]
    lengths = torch.tensor([len(raw) + 2 for raw in kept], dtype=torch.int64)
    width = padded_length(max((len(raw) + 2 for raw in kept), default=2), max_length)
    ids = torch.full((len(kept), width), PADDING, dtype=torch.int64)
    for row, raw in zip(ids, kept, strict=True):
        row[: len(raw) + 2] = torch.tensor([START, *raw, END])
    mask = torch.arange(width) < lengths[:, None]
    truncated = torch.tensor(
        [len(raw) < len(original) for raw, original in zip(kept, full, strict=True)], dtype=torch.bool
    )
    return ids, mask, truncated


def mask_dropped(mask: Tensor, keep: Tensor | None) -> Tensor:
    """The mask `(batch, tokens)` with all tokens masked in rows where `keep` `(batch,)` is False."""
    return mask if keep is None else mask & keep.to(mask.device)[:, None]


def padded_length(longest: int, limit: int) -> int:
    """The next multiple of eight, but at most `limit`."""
    return min(-(-longest // 8) * 8, limit)


def _truncate(raw: bytes, limit: int) -> bytes:
    if len(raw) <= limit:
        return raw
    while raw[limit] & 0b1100_0000 == 0b1000_0000:  # do not split a multi-byte character
        limit -= 1
    return raw[:limit]


def _check_length(max_length: int) -> None:
    if max_length < MIN_MAX_LENGTH:
        raise UsageError(f"A text encoder needs a max_length of at least {MIN_MAX_LENGTH}, not {max_length}.")


TABLE_ROWS = 8192
"""Rows of the embedding table; row 0 is padding."""
NGRAM = 3
MAX_PIECES = 12
"""Maximum number of table rows per word: the word itself, and its first n-grams."""


class WordTextEncoder(nn.Module):
    """Hashed words through a transformer: vectors `(batch, words, dim)` and their mask `(batch, words)`."""

    def __init__(self, dim: int, depth: int, heads: int, max_length: int = 128) -> None:
        super().__init__()
        if dim % (2 * heads):
            raise UsageError(f"A text encoder's dim must be a multiple of twice its heads, not {dim} with {heads}.")
        self.max_length = max_length
        self.embedding = nn.Embedding(TABLE_ROWS, dim, padding_idx=0)
        nn.init.normal_(self.embedding.weight[1:], std=EMBEDDING_SCALE)
        positions = Rotary((max_length,), dim // heads)
        self.transformer = Transformer(dim, depth, heads, dim // heads, positions=positions)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """`ids` `(batch, words, pieces)` and `mask` `(batch, words)` from `prepare`; returns vectors and the mask."""
        return self.transformer(self.look_up(ids), mask), mask

    def look_up(self, ids: Tensor) -> Tensor:
        """The embedding `(batch, words, dim)` of each word, from its table rows `(batch, words, pieces)`."""
        rows = self.embedding(ids)
        pieces = (ids[..., 1:] > 0).sum(-1, keepdim=True).clamp(min=1)
        # The norm of a sum of independent rows grows with the square root of their number.
        vectors: Tensor = rows[..., 0, :] + rows[..., 1:, :].sum(-2) / pieces.sqrt()
        return vectors

    def prepare(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        """The input of `forward`, as `text` and `text_mask`. Every text ends with an empty word, also an empty text."""
        return prepare_words(self.max_length, texts, keep)

    @property
    def preparation(self) -> TextPreparation:
        return partial(prepare_words, self.max_length)


def prepare_words(max_length: int, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
    """Table rows of the words of texts, as `text`, and the mask of the words, as `text_mask`."""
    found = [[*words_of(text)[: max_length - 1], ""] for text in texts]
    width = padded_length(max(map(len, found), default=1), max_length)
    ids = torch.zeros(len(found), width, MAX_PIECES, dtype=torch.int64)
    for row, words in zip(ids, found, strict=True):
        row[: len(words)] = torch.tensor([_rows_of(word) for word in words])
    mask = torch.arange(width) < torch.tensor([len(words) for words in found])[:, None]
    return {"text": ids, "text_mask": mask_dropped(mask, keep)}


def words_of(text: str) -> list[str]:
    """Words and punctuation marks, case-folded; scripts without spaces give few, long words.

    Accents and vowel signs belong to their letters, whether composed or not; invalid Unicode becomes a question mark.
    """
    valid = text.encode("utf-8", "replace").decode()
    words: list[str] = []
    inside = False
    for letter in unicodedata.normalize("NFC", valid.casefold()):
        belongs = letter == "_" or letter.isalnum() or unicodedata.category(letter).startswith("M")
        if belongs and inside:
            words[-1] += letter
        elif not letter.isspace():
            words.append(letter)
        inside = belongs
    return words


@functools.lru_cache(maxsize=65_536)
def _rows_of(word: str) -> tuple[int, ...]:
    """Table rows of a word: of the word itself, of its n-grams, then padding."""
    bounded = f"<{word}>"
    pieces = [bounded[start : start + NGRAM] for start in range(len(bounded) - NGRAM + 1)] if len(word) > 1 else []
    rows = [_row("word", word), *(_row("piece", piece) for piece in pieces)][:MAX_PIECES]
    return (*rows, *[0] * (MAX_PIECES - len(rows)))


def _row(kind: str, spelling: str) -> int:
    return 1 + seed_from(kind, spelling) % (TABLE_ROWS - 1)


class TokenizerFolder:
    """A tokenizer of `transformers`: texts to padded rows of ids. Not a module; loaded on first use."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).expanduser()

    def __deepcopy__(self, memo: dict[int, Any]) -> TokenizerFolder:
        """Returns itself: it is immutable."""
        return self

    @property
    def vocabulary(self) -> int:
        """Number of ids, including the padding id, which is the last."""
        return len(self._tokenizer) + 1

    def encode(self, texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids `(batch, length)`, their mask, and which texts `(batch,)` were truncated."""
        limit = min(max_length, self._tokenizer.model_max_length)
        full = kept = self._tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
        if any(len(row) > limit for row in full):
            kept = self._tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
        width = padded_length(max((len(row) for row in kept), default=1) or 1, max_length)
        ids = torch.full((len(kept), width), self.vocabulary - 1, dtype=torch.int64)
        for padded, row in zip(ids, kept, strict=True):
            padded[: len(row)] = torch.tensor(row, dtype=torch.int64)
        mask = torch.arange(width) < torch.tensor([len(row) for row in kept], dtype=torch.int64)[:, None]
        truncated = torch.tensor([len(row) < len(original) for row, original in zip(kept, full, strict=True)])
        return ids, mask, truncated.bool()

    @cached_property
    def _tokenizer(self) -> Any:
        if not self.folder.is_dir():
            raise UsageError(f"text: the tokenizer folder {self.folder} does not exist")
        load_transformers("text: tokens:…")
        return load_part(self.folder, "tokenizer", "AutoTokenizer")
