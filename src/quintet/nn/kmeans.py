"""k-means: Lloyd's rounds over all vectors at once, and no cluster left empty.

`fit` looks for good centres: it starts far apart (k-means++) and goes on until nothing changes. `init_codebook` looks
for a start that training goes on with: from random vectors, for a few rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.common import rng
from quintet.errors import UsageError

ROUNDS = 100
STARTED_FROM = 32
"""Vectors a cluster that the start is chosen from; all of them would take as long as the rounds."""
SCORES_AT_ONCE = 2**22
"""Elements of the matrix of scores: small enough for a cache, large enough for the matrix product."""


class Clusters(NamedTuple):
    """Centres (clusters, dim), and what became of the vectors they were found in."""

    centres: Tensor
    rounds: int
    explained: float
    """Share of the vectors' variance that lies between clusters, not within them."""


def fit(vectors: Tensor, clusters: int, seed: int, rounds: int = ROUNDS) -> Clusters:
    """Until no vector (n, dim) changes its cluster, or for so many rounds. The same seed gives the same centres."""
    if clusters > len(vectors):
        raise UsageError(f"{clusters} clusters cannot be found in {len(vectors)} vectors")
    generator = torch.Generator().manual_seed(rng.seed_from(seed, "k-means"))
    some = torch.randperm(len(vectors), generator=generator)[: STARTED_FROM * clusters]
    centres = kmeans_plus_plus(vectors[some.to(vectors.device)], clusters, generator)
    codes, taken, settled = nearest(vectors, centres), 0, False
    while not settled and taken < rounds:
        centres = _refilled_means(vectors, codes, clusters)
        before, codes, taken = codes, nearest(vectors, centres), taken + 1
        settled = torch.equal(before, codes)
    within = (vectors - centres[codes]).square().sum(dtype=torch.float64)
    all_of_it = (vectors - vectors.mean(0)).square().sum(dtype=torch.float64)
    explained = float(1 - within / all_of_it) if all_of_it else 1.0
    return Clusters(centres, taken, explained)


def kmeans_plus_plus(vectors: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Some of the vectors, each drawn by its squared distance to those drawn before (Arthur & Vassilvitskii 2007)."""
    chosen = [int(torch.randint(len(vectors), (1,), generator=generator))]
    squares = vectors.square().sum(1)
    distances = torch.full_like(squares, torch.inf)
    for at in torch.rand(clusters - 1, generator=generator, dtype=torch.float64).tolist():
        last = chosen[-1]
        to_last = torch.addmv(squares, vectors, vectors[last], alpha=-2).add_(squares[last])
        distances = distances.minimum(to_last.clamp_(min=0))
        distances[last] = 0
        reached = distances.double().cumsum(0)
        place = torch.searchsorted(reached, at * reached[-1], right=True)
        chosen.append(min(int(place), len(vectors) - 1))
    return vectors[chosen]


def init_codebook(vectors: Tensor, num_codes: int, seed: int, rounds: int = 10) -> Tensor:
    """Codes (num_codes, dim) from random vectors; a cluster that falls empty starts again at a random vector."""
    generator = torch.Generator().manual_seed(rng.seed_from(seed, "k-means"))
    shuffled = torch.randperm(len(vectors), generator=generator)
    first = shuffled.repeat(-(-num_codes // len(vectors)))[:num_codes]
    centres = vectors[first.to(vectors.device)]
    for _ in range(rounds):
        means, counts = _means(vectors, nearest(vectors, centres), num_codes)
        others = torch.randint(len(vectors), (num_codes,), generator=generator)
        centres = torch.where(counts[:, None] > 0, means, vectors[others.to(vectors.device)])
    return centres


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


def _refilled_means(vectors: Tensor, codes: Tensor, clusters: int) -> Tensor:
    """The mean of each cluster; an empty one starts again at a vector that is far from its own centre."""
    means, counts = _means(vectors, codes, clusters)
    empty = (counts == 0).nonzero()[:, 0]
    if len(empty):
        away = (vectors - means[codes]).square().sum(1)
        means[empty] = vectors[away.topk(len(empty)).indices]
    return means


def _means(vectors: Tensor, codes: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """The mean (clusters, dim) of the vectors of each cluster, zero where there are none, and how many they are."""
    counts = torch.bincount(codes, minlength=clusters)
    return sums_by_code(vectors, codes, clusters) / counts.clamp(min=1)[:, None], counts
