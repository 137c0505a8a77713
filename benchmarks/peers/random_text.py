"""Untrained text embeddings for the packages whose T5 would be a download."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

DIM = 512
"""Dimension of the embeddings of T5-small."""
START, END, SYMBOLS = 256, 257, 258


class RandomTextEmbeddings:
    """A random vector for each byte, plus sinusoidal positions."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.vectors = torch.randn(SYMBOLS, DIM, generator=torch.Generator().manual_seed(0))
        speeds = torch.exp(-math.log(10_000) * torch.arange(0, DIM, 2) / DIM)
        angles = torch.arange(max_length)[:, None] * speeds
        self.positions = torch.cat([angles.sin(), angles.cos()], dim=1)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Embeddings (texts, symbols, dim); zeros are padding for the peers."""
        symbols = [[START, *text.encode()[: self.max_length - 2], END] for text in texts]
        embedded = torch.zeros(len(texts), max(map(len, symbols)), DIM)
        for row, each in zip(embedded, symbols, strict=True):
            row[: len(each)] = F.embedding(torch.tensor(each), self.vectors) + self.positions[: len(each)]
        return embedded
