"""Owns k-means over many vectors at once: a start far apart (k-means++), Lloyd's rounds, and no cluster left empty.

The k-means of a quantizer's codebook, which training goes on with, is in `quantize/clusters.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.common import rng
from quintet.errors import UsageError
from quintet.nn.quantize.clusters import nearest, sums_by_code

ROUNDS = 100
STARTED_FROM = 32
"""Vectors a cluster that the start is chosen from; all of them would take as long as the rounds."""


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
    centres = far_apart(vectors[some.to(vectors.device)], clusters, generator)
    codes, taken, settled = nearest(vectors, centres), 0, False
    while not settled and taken < rounds:
        centres = _means(vectors, codes, centres)
        before, codes, taken = codes, nearest(vectors, centres), taken + 1
        settled = torch.equal(before, codes)
    within = (vectors - centres[codes]).square().sum(dtype=torch.float64)
    all_of_it = (vectors - vectors.mean(0)).square().sum(dtype=torch.float64)
    explained = float(1 - within / all_of_it) if all_of_it else 1.0
    return Clusters(centres, taken, explained)


def far_apart(vectors: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
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


def _means(vectors: Tensor, codes: Tensor, centres: Tensor) -> Tensor:
    """The mean of each cluster; an empty one starts again at a vector that is far from its own centre."""
    counts = torch.bincount(codes, minlength=len(centres))
    means = sums_by_code(vectors, codes, len(centres)) / counts.clamp(min=1)[:, None]
    empty = (counts == 0).nonzero()[:, 0]
    if len(empty):
        away = (vectors - means[codes]).square().sum(1)
        means[empty] = vectors[away.topk(len(empty)).indices]
    return means
