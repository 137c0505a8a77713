"""Owns vector quantization with a codebook of moving averages (VQ-VAE, 1711.00937, appendix A.1).

The codebook is no parameter. Each code is the moving average of the vectors assigned to it; a code that hardly
anything is assigned to any more begins a new life as one of the vectors of the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common import collectives, rng
from quintet.common.statistics import Statistics
from quintet.errors import UsageError
from quintet.nn import kmeans
from quintet.nn.quantize.base import SingleQuantizer

SMOOTHING = 1e-5
ROWS_PER_ITEM = 16
"""Vectors of each item that may become codes in place of dead ones."""


class VectorQuantizer(SingleQuantizer):
    """A learnt codebook; the nearest code wins.

    `code_dim`: dimension of the codes, `dim` if not given. `cosine`: compare directions only; latents and codes
    are then unit vectors. `commitment_weight`: of the mean squared distance of the latents to their codes.
    `revive_below`: a code used less often than this in a global step, by its moving average, is dead (0 turns
    revival off; keep it well below the mean, positions of a step / codes).
    """

    def __init__(
        self,
        dim: int,
        num_codes: int,
        code_dim: int | None = None,
        *,
        cosine: bool = False,
        decay: float = 0.99,
        commitment_weight: float = 0.25,
        revive_below: float = 0.1,
    ) -> None:
        super().__init__(dim, dim if code_dim is None else code_dim, num_codes)
        if num_codes < 2:
            raise UsageError(f"A codebook needs num_codes of at least 2, not {num_codes}.")
        if not 0 <= decay < 1:
            raise UsageError(f"The codebook's decay must be at least 0 and less than 1, not {decay}.")
        self.cosine = cosine
        self.decay = decay
        self.commitment_weight = commitment_weight
        self.revive_below = revive_below
        self.codebook: Tensor
        self.cluster_size: Tensor
        self.vector_sums: Tensor
        codebook = self.bound(torch.randn(num_codes, self.code_dim) * self.code_dim**-0.5)
        self.register_buffer("codebook", codebook)
        self.register_buffer("cluster_size", torch.ones(num_codes))
        self.register_buffer("vector_sums", codebook.clone())

    def bound(self, latents: Tensor) -> Tensor:
        return F.normalize(latents, dim=-1) if self.cosine else latents

    def nearest(self, latents: Tensor, levels: int | None = None) -> Tensor:
        return kmeans.nearest(latents, self.codebook.to(latents.dtype))

    def look_up(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self.codebook)

    def auxiliary_loss(self, latents: Tensor, values: Tensor, valid: Tensor | None) -> Tensor:
        if valid is None:
            return self.commitment_weight * F.mse_loss(latents, values)
        distances = (latents - values).square().mean(-1)
        return self.commitment_weight * collectives.mean_over_ranks(distances, valid)

    def report(self, latents: Tensor, codes: Tensor, mask: Tensor | None, return_candidates: bool) -> Statistics:
        statistics = super().report(latents, codes, mask, return_candidates)
        sums = kmeans.sums_by_code(latents.flatten(0, 1), self.bins(codes, mask), self.num_codes + 1)
        statistics.sums["vectors"] = sums[: self.num_codes]
        if return_candidates:
            rows, real = spread_rows(latents, mask)
            statistics.rows["vectors"] = rows
            statistics.rows["real"] = real.to(torch.uint8)
        return statistics

    @torch.no_grad()
    def update(self, statistics: Statistics, seed: int) -> None:
        if "count" not in statistics.sums:
            return
        self.cluster_size.lerp_(statistics.sums["count"].to(self.cluster_size), 1 - self.decay)
        self.vector_sums.lerp_(statistics.sums["vectors"].to(self.vector_sums), 1 - self.decay)
        self.codebook.copy_(self.bound(self.vector_sums / self.smooth_size()[:, None]))
        if "vectors" in statistics.rows:
            real = statistics.rows["real"].bool()
            self.revive(statistics.rows["vectors"][real], seed)
            self.sync()

    def smooth_size(self) -> Tensor:
        """The cluster sizes by Laplace's rule, of the same total: an unused code is not divided by 0."""
        total = self.cluster_size.sum()
        return (self.cluster_size + SMOOTHING) / (total + self.num_codes * SMOOTHING) * total

    def revive(self, candidates: Tensor, seed: int) -> None:
        """Put candidates, each at most once, in the place of dead codes.

        They begin at twice the limit, so a new code has log(2) / (1 - decay) steps to find vectors.
        """
        dead = (self.cluster_size < self.revive_below).nonzero().flatten()
        generator = torch.Generator().manual_seed(rng.seed_from(seed, "revive"))
        chosen = torch.randperm(len(candidates), generator=generator)[: len(dead)]
        places = dead[torch.randperm(len(dead), generator=generator)[: len(candidates)].to(dead.device)]
        size = 2 * self.revive_below
        self.codebook[places] = candidates[chosen.to(candidates.device)].to(self.codebook)
        self.cluster_size[places] = size
        self.vector_sums[places] = self.codebook[places] * size

    def start(self, latents: Tensor, seed: int) -> None:
        means = kmeans.init_codebook(latents, self.num_codes, seed)
        self.codebook.copy_(self.bound(means))
        self.cluster_size.fill_(1)
        self.vector_sums.copy_(self.codebook)
        self.sync()

    def sync(self) -> None:
        """What was drawn at random is the first rank's everywhere."""
        for tensor in (self.codebook, self.cluster_size, self.vector_sums):
            collectives.broadcast(tensor)


def spread_rows(latents: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`ROWS_PER_ITEM` vectors of each item, evenly spread over its valid positions, and which of them are real.

    An item with fewer positions is filled up with rows that are not real: all ranks must bring as many.
    """
    batch, positions, dim = latents.shape
    if mask is None:
        mask = torch.ones(batch, positions, dtype=torch.bool, device=latents.device)
    seen = mask.cumsum(-1)
    lengths = seen[:, -1:]
    numbers = torch.arange(ROWS_PER_ITEM, device=latents.device)
    chosen = torch.where(lengths > ROWS_PER_ITEM, numbers * lengths // ROWS_PER_ITEM, numbers)
    # The position of the n-th valid vector is the first at which n + 1 have been seen.
    where = torch.searchsorted(seen, chosen + 1).clamp(max=positions - 1)
    real = chosen < lengths
    rows = latents.gather(1, where[..., None].expand(-1, -1, dim)).masked_fill(~real[..., None], 0)
    return rows.flatten(0, 1), real.flatten()
