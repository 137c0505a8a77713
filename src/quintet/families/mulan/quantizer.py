"""`MuLaNEmbedQuantizer`: vectors of the shared space as codes, for generators that they condition (MusicLM,
2301.11325): a residual quantizer of moving averages."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.nn.quantize import make_quantizer

FEWEST = 0.05
"""A code that is used less often than this share of the mean is dead."""


class MuLaNEmbedQuantizer(nn.Module):
    """Vectors `(batch, latent_dim)` to codes `(batch, levels)`, the coarsest first, and back.

    `positions` is how many vectors a step brings in training.
    """

    def __init__(
        self,
        latent_dim: int,
        levels: int = 8,
        codebook_size: int = 1024,
        *,
        positions: int = 1024,
    ) -> None:
        super().__init__()
        if levels < 1:
            raise UsageError(f"MuLaNEmbedQuantizer needs levels of at least 1, not {levels}")
        # Vectors that take part in no gradient: nothing has to commit itself to a code.
        self.quantizer = make_quantizer(
            "vq",
            latent_dim,
            codebook_size,
            levels,
            commitment_weight=0.0,
            revive_below=FEWEST * positions / codebook_size,
        )

    def encode(self, vectors: Tensor) -> Tensor:
        codes: Tensor = self.quantizer.encode(vectors[None])[0]
        return codes if self.quantizer.code_axes else codes[:, None]

    def decode(self, codes: Tensor) -> Tensor:
        """The vectors that codes stand for, of length one."""
        inner = codes if self.quantizer.code_axes else codes[:, 0]
        return F.normalize(self.quantizer.codes_to_vectors(inner[None])[0], dim=-1)

    def forward(self, views: Tensor, want_rows: bool) -> Statistics:
        """What the views of a batch, `(batch, views, latent_dim)`, add to the codebooks."""
        statistics: Statistics = self.quantizer(views, want_rows=want_rows).statistics
        return statistics
