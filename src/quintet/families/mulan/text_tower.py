"""`TextTransformer`: bytes, tokens, or the vectors of a frozen text encoder, through a transformer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.caches import default_folder
from quintet.config import validate
from quintet.config.text import PRETRAINED
from quintet.errors import UsageError
from quintet.families.mulan.config import TOKENS, TextTowerConfig
from quintet.families.mulan.pooling import pooled_states
from quintet.nn.positions import EMBEDDING_SCALE, Rotary
from quintet.nn.pretrained_text import PretrainedText
from quintet.nn.text import NUM_SYMBOLS, TokenizerFolder, encode_bytes, padded_length
from quintet.nn.transformer import Transformer

Prepared = tuple[Tensor, Tensor]
"""Symbols `(batch, length)`, or a frozen encoder's vectors with a width behind; and which of them are there."""


class TextTransformer(nn.Module):
    """Texts to vectors `(batch, dim)`. Keyword arguments are the keys of `model.text`."""

    def __init__(self, config: TextTowerConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(TextTowerConfig, keywords)
        self.tokenizer: TokenizerFolder | None = None
        self.frozen: PretrainedText | None = None
        if config.reads.startswith(PRETRAINED):
            self.frozen = PretrainedText(config.reads, default_folder(), config.max_length)
            self.project = nn.Linear(self.frozen.dim, config.dim)
        else:
            if config.reads.startswith(TOKENS):
                self.tokenizer = TokenizerFolder(config.reads.removeprefix(TOKENS))
            self.embedding = nn.Embedding(config.vocabulary or self._own_vocabulary(), config.dim)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        self.transformer = Transformer(
            config.dim,
            config.depth,
            config.heads,
            config.head_dim,
            multiplier=config.multiplier,
            dropout=config.dropout,
            positions=Rotary((config.max_length,), config.head_dim),
        )

    def prepare(self, texts: Sequence[str]) -> Prepared:
        """What `forward` takes, on the CPU. What is too long is cut at its end."""
        if self.frozen is not None:
            return self.frozen.embed(texts)
        ids, mask, _ = self._encode(texts)
        return ids, mask

    def too_long(self, texts: Sequence[str]) -> list[str]:
        """Those that `prepare` cuts; a frozen encoder tells of its own cuts."""
        if self.frozen is not None:
            return []
        cut = self._encode(texts)[2].tolist()
        return [text for text, shorter in zip(texts, cut, strict=True) if shorter]

    def prepare_ids(self, rows: Sequence[Tensor]) -> Prepared:
        """The same of texts that come as ids of the vocabulary, without padding."""
        if self.frozen is not None:
            raise UsageError(f"model.text.reads={self.config.reads} reads texts, not ids")
        kept = [row[: self.config.max_length] for row in rows]
        largest = max((int(row.max()) for row in kept if len(row)), default=0)
        if largest >= self.embedding.num_embeddings or any(int(row.min()) < 0 for row in kept if len(row)):
            raise UsageError(
                f"ids of a text go from 0 to {self.embedding.num_embeddings - 1} (model.text.vocabulary), "
                f"and there is a {largest}"
            )
        width = padded_length(max((len(row) for row in kept), default=1) or 1, self.config.max_length)
        ids = torch.stack([F.pad(row, (0, width - len(row))) for row in kept])
        return ids, torch.arange(width) < torch.tensor([len(row) for row in kept])[:, None]

    def forward(self, text: Tensor, mask: Tensor, after: Sequence[int] = ()) -> Tensor:
        """One vector a text for each of the blocks `after` and the last norm, `(batch, states, dim)`."""
        if self.frozen is None:
            x = self.embedding(text)
        else:
            # Frozen encoders differ in the scale of what they make; the tower should not.
            x = self.project(F.layer_norm(text.to(self.project.weight.dtype), (self.frozen.dim,)))
        return pooled_states(self.transformer, x, mask, after)

    def _encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        if self.tokenizer is not None:
            return self.tokenizer.encode(texts, self.config.max_length)
        return encode_bytes(texts, self.config.max_length)

    def _own_vocabulary(self) -> int:
        return NUM_SYMBOLS if self.tokenizer is None else self.tokenizer.vocabulary
