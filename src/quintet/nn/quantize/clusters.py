"""Owns the search for the nearest code, k-means, and the choice of the vectors that stand for a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from quintet.common import rng

SCORES_AT_ONCE = 2**22
"""Elements of the matrix of scores: small enough for a cache, large enough for the matrix product."""

ROWS_PER_ITEM = 16


def nearest(vectors: Tensor, codebook: Tensor) -> Tensor:
    """The index of the code nearest to each of `(n, dim)` vectors.

    The smallest |v - c|^2 is the largest v.c - |c|^2 / 2.
    """
    offsets = codebook.square().sum(-1).mul_(-0.5)
    columns = codebook.t()
    rows = max(1, SCORES_AT_ONCE // len(codebook))
    if len(vectors) <= rows:
        return torch.addmm(offsets, vectors, columns).argmax(-1)
    parts = (vectors[start : start + rows] for start in range(0, len(vectors), rows))
    return torch.cat([torch.addmm(offsets, part, columns).argmax(-1) for part in parts])


def sums_by_code(vectors: Tensor, codes: Tensor, num_codes: int) -> Tensor:
    """The sum of the vectors of each code, `(num_codes, dim)`."""
    return vectors.new_zeros(num_codes, vectors.shape[-1]).index_add_(0, codes, vectors)


def kmeans(vectors: Tensor, num_codes: int, seed: int, rounds: int = 10) -> Tensor:
    """Lloyd's algorithm from random vectors; a cluster that falls empty starts again at a random vector."""
    generator = torch.Generator().manual_seed(rng.seed_from(seed, "k-means"))
    shuffled = torch.randperm(len(vectors), generator=generator)
    first = shuffled.repeat(-(-num_codes // len(vectors)))[:num_codes]
    means = vectors[first.to(vectors.device)]
    for _ in range(rounds):
        codes = nearest(vectors, means)
        counts = torch.bincount(codes, minlength=num_codes)[:, None]
        others = torch.randint(len(vectors), (num_codes,), generator=generator)
        centres = sums_by_code(vectors, codes, num_codes) / counts.clamp(min=1)
        means = torch.where(counts > 0, centres, vectors[others.to(vectors.device)])
    return means


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
