"""Vector quantization with an EMA codebook (VQ-VAE, 1711.00937, appendix A.1).

The codebook is not a parameter. Each code is the moving average of the vectors assigned to it; a dead code, to which
hardly any vectors are assigned, is replaced by a vector of the batch.
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
CANDIDATES_PER_ITEM = 16
"""Number of vectors per item that may replace dead codes."""


class VectorQuantizer(SingleQuantizer):
    """VQ: a learned codebook with nearest-neighbour assignment.

    `code_dim`: dimension of the codes, by default `dim`. `cosine`: compare only directions; latents and codes are then
    unit vectors. `commitment_weight`: weight of the mean squared distance between latents and their codes.
    `revive_below`: a code is dead if the moving average of its uses per global step is below this (0 disables revival;
    it should be well below the mean, positions per step / codes).
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
        self.is_fixed = False
        """Whether `update` leaves the codebook as it is, because the run does not train it."""
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

    def collect_statistics(
        self, latents: Tensor, codes: Tensor, mask: Tensor | None, return_candidates: bool
    ) -> Statistics:
        statistics = super().collect_statistics(latents, codes, mask, return_candidates)
        sums = kmeans.sums_by_code(latents.flatten(0, 1), self.bins(codes, mask), self.num_codes + 1)
        statistics.sums["vectors"] = sums[: self.num_codes]
        if return_candidates:
            rows, real = select_candidates(latents, mask)
            statistics.rows["vectors"] = rows
            statistics.rows["real"] = real.to(torch.uint8)
        return statistics

    @torch.no_grad()
    def update(self, statistics: Statistics, seed: int) -> None:
        if self.is_fixed or "count" not in statistics.sums:
            return
        self.cluster_size.lerp_(statistics.sums["count"].to(self.cluster_size), 1 - self.decay)
        self.vector_sums.lerp_(statistics.sums["vectors"].to(self.vector_sums), 1 - self.decay)
        self.codebook.copy_(self.bound(self.vector_sums / self.smooth_size()[:, None]))
        if "vectors" in statistics.rows:
            real = statistics.rows["real"].bool()
            self.revive(statistics.rows["vectors"][real], seed)
            self.sync()

    def smooth_size(self) -> Tensor:
        """The cluster sizes with Laplace smoothing and the same total, which avoids division by 0."""
        total = self.cluster_size.sum()
        return (self.cluster_size + SMOOTHING) / (total + self.num_codes * SMOOTHING) * total

    def revive(self, candidates: Tensor, seed: int) -> None:
        """Replace dead codes by candidates `(n, code_dim)`, each at most once.

        A new code starts with twice the usage limit, so it has log(2) / (1 - decay) steps to get vectors assigned.
        """
        dead = (self.cluster_size < self.revive_below).nonzero().flatten()
        generator = torch.Generator().manual_seed(rng.seed_from(seed, "revive"))
        chosen = torch.randperm(len(candidates), generator=generator)[: len(dead)]
        replaced = dead[torch.randperm(len(dead), generator=generator)[: len(candidates)].to(dead.device)]
        size = 2 * self.revive_below
        self.codebook[replaced] = candidates[chosen.to(candidates.device)].to(self.codebook)
        self.cluster_size[replaced] = size
        self.vector_sums[replaced] = self.codebook[replaced] * size

    def init_from_latents(self, latents: Tensor, seed: int) -> None:
        means = kmeans.init_codebook(latents, self.num_codes, seed)
        self.codebook.copy_(self.bound(means))
        self.cluster_size.fill_(1)
        self.vector_sums.copy_(self.codebook)
        self.sync()

    def sync(self) -> None:
        """Broadcast the codebook from the first rank, because random choices were made."""
        for tensor in (self.codebook, self.cluster_size, self.vector_sums):
            collectives.broadcast(tensor)


def select_candidates(latents: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """`CANDIDATES_PER_ITEM` vectors of each item, evenly spaced over its valid positions, and a mask of real ones.

    Items with fewer positions are padded with rows that are not real, because all ranks need the same number of rows.
    """
    batch, positions, dim = latents.shape
    if mask is None:
        mask = torch.ones(batch, positions, dtype=torch.bool, device=latents.device)
    counts = mask.cumsum(-1)
    lengths = counts[:, -1:]
    numbers = torch.arange(CANDIDATES_PER_ITEM, device=latents.device)
    chosen = torch.where(lengths > CANDIDATES_PER_ITEM, numbers * lengths // CANDIDATES_PER_ITEM, numbers)
    # The position of the n-th valid vector is the first at which the count reaches n + 1.
    where = torch.searchsorted(counts, chosen + 1).clamp(max=positions - 1)
    real = chosen < lengths
    rows = latents.gather(1, where[..., None].expand(-1, -1, dim)).masked_fill(~real[..., None], 0)
    return rows.flatten(0, 1), real.flatten()
