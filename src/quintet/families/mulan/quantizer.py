"""`MuLaNEmbedQuantizer`: vectors of the shared space as codes, for generators that they condition (MusicLM,
2301.11325): a residual quantizer of moving averages, and for each generator tables of its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.nn.quantize import make_quantizer

FEWEST = 0.05
"""A code that is used less often than this share of the mean is dead."""


class MuLaNEmbedQuantizer(nn.Module):
    """Vectors `(batch, latent_dim)` to codes `(batch, levels)`, the coarsest first, and back.

    `positions` is how many vectors a step brings in training. `namespaces` names the generators with the widths of
    their conditioning vectors; `conditioning` looks codes up in a generator's own tables, which are trained with it.
    """

    def __init__(
        self,
        latent_dim: int,
        levels: int = 8,
        codebook_size: int = 1024,
        *,
        positions: int = 1024,
        namespaces: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        if levels < 1:
            raise UsageError(f"MuLaNEmbedQuantizer needs levels of at least 1, not {levels}")
        self.levels, self.codebook_size = levels, codebook_size
        # Vectors that take part in no gradient: nothing has to commit itself to a code.
        self.quantizer = make_quantizer(
            "vq",
            latent_dim,
            codebook_size,
            levels,
            commitment_weight=0.0,
            revive_below=FEWEST * positions / codebook_size,
        )
        self.tables = nn.ModuleDict(
            {name: nn.Embedding(levels * codebook_size, width) for name, width in (namespaces or {}).items()}
        )

    def encode(self, vectors: Tensor) -> Tensor:
        codes: Tensor = self.quantizer.encode(vectors[None])[0]
        return codes if self.quantizer.code_axes else codes[:, None]

    def decode(self, codes: Tensor) -> Tensor:
        """The vectors that codes stand for, of length one."""
        inner = codes if self.quantizer.code_axes else codes[:, 0]
        return F.normalize(self.quantizer.codes_to_vectors(inner[None])[0], dim=-1)

    def conditioning(self, vectors: Tensor, namespace: str) -> Tensor:
        """The conditioning vectors of a generator, `(batch, levels, width)`."""
        if namespace not in self.tables:
            known = ", ".join(self.tables) or "none"
            raise UsageError(f"there are no tables for {namespace!r}; known: {known}")
        codes = self.encode(vectors)
        shift = self.codebook_size * codes.new_tensor(range(self.levels))
        looked_up: Tensor = self.tables[namespace](codes + shift)
        return looked_up

    def forward(self, views: Tensor, want_rows: bool) -> Statistics:
        """What the views of a batch, `(batch, views, latent_dim)`, add to the codebooks."""
        statistics: Statistics = self.quantizer(views, want_rows=want_rows).statistics
        return statistics
