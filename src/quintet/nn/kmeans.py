"""k-means clustering (Lloyd's algorithm) without empty clusters.

`fit` searches for good centres: k-means++ initialisation, then iterations until convergence. `init_codebook` finds
initial codes for training: random vectors, then a few iterations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.common import rng
from quintet.common.precision import as_float64
from quintet.errors import UsageError

MAX_ITERATIONS = 100
INIT_VECTORS_PER_CLUSTER = 32
"""Number of random vectors per cluster that k-means++ chooses from; using all would take as long as the iterations."""
CPU_SCORES = 2**22
"""Elements of the score matrix per chunk: small enough for the CPU cache, large enough for an efficient product."""
GPU_SCORES = 2**26
"""The same on a GPU, where many small kernels would leave most of it idle: 256 MiB in fp32."""


class Clusters(NamedTuple):
    """Result of `fit`: centres (clusters, dim), number of iterations, and explained variance."""

    centres: Tensor
    rounds: int
    explained: float
    """Fraction of the variance of the vectors that is between clusters."""


def fit(vectors: Tensor, clusters: int, seed: int, rounds: int = MAX_ITERATIONS) -> Clusters:
    """Cluster `vectors` (n, dim) until no vector changes its cluster, for at most `rounds` iterations.

    The same seed gives the same centres.
    """
    if clusters > len(vectors):
        raise UsageError(f"cannot make {clusters} clusters of {len(vectors)} vectors; use fewer clusters or more data")
    generator = torch.Generator().manual_seed(rng.seed_from(seed, "k-means"))
    some = torch.randperm(len(vectors), generator=generator)[: INIT_VECTORS_PER_CLUSTER * clusters]
    centres = kmeans_plus_plus(vectors[some.to(vectors.device)], clusters, generator)
    codes, iterations, converged = nearest(vectors, centres), 0, False
    while not converged and iterations < rounds:
        centres = _refilled_means(vectors, codes, clusters)
        before, codes, iterations = codes, nearest(vectors, centres), iterations + 1
        converged = torch.equal(before, codes)
    within = (vectors - centres[codes]).square().cpu().sum(dtype=torch.float64)
    total = (vectors - vectors.mean(0)).square().cpu().sum(dtype=torch.float64)
    explained = float(1 - within / total) if total else 1.0
    return Clusters(centres, iterations, explained)


def kmeans_plus_plus(vectors: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """k-means++: initial centres (clusters, dim), sampled by squared distance (Arthur & Vassilvitskii 2007)."""
    chosen = [int(torch.randint(len(vectors), (1,), generator=generator))]
    squares = vectors.square().sum(1)
    distances = torch.full_like(squares, torch.inf)
    for at in torch.rand(clusters - 1, generator=generator, dtype=torch.float64).tolist():
        last = chosen[-1]
        to_last = torch.addmv(squares, vectors, vectors[last], alpha=-2).add_(squares[last])
        distances = distances.minimum(to_last.clamp_(min=0))
        distances[last] = 0
        reached = as_float64(distances).cumsum(0)
        index = torch.searchsorted(reached, at * reached[-1], right=True)
        chosen.append(min(int(index), len(vectors) - 1))
    return vectors[chosen]


def init_codebook(vectors: Tensor, num_codes: int, seed: int, rounds: int = 10) -> Tensor:
    """Initial codes (num_codes, dim): k-means from random vectors; an empty cluster restarts at a random vector."""
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
    """The index (n,) of the nearest code for each of `vectors` (n, dim); `codebook` is (codes, dim).

    The smallest |v - c|^2 is the largest v.c - |c|^2 / 2.
    """
    offsets = codebook.square().sum(-1).mul_(-0.5)
    columns = codebook.t()
    rows = max(1, (CPU_SCORES if vectors.device.type == "cpu" else GPU_SCORES) // len(codebook))
    if len(vectors) <= rows:
        return torch.addmm(offsets, vectors, columns).argmax(-1)
    parts = (vectors[start : start + rows] for start in range(0, len(vectors), rows))
    return torch.cat([torch.addmm(offsets, part, columns).argmax(-1) for part in parts])


def sums_by_code(vectors: Tensor, codes: Tensor, num_codes: int) -> Tensor:
    """Sum of the vectors (n, dim) assigned to each code, `(num_codes, dim)`."""
    return vectors.new_zeros(num_codes, vectors.shape[-1]).index_add_(0, codes, vectors)


def _refilled_means(vectors: Tensor, codes: Tensor, clusters: int) -> Tensor:
    """The mean of each cluster; an empty cluster restarts at one of the vectors farthest from their centres."""
    means, counts = _means(vectors, codes, clusters)
    empty = (counts == 0).nonzero()[:, 0]
    if len(empty):
        distances = (vectors - means[codes]).square().sum(1)
        means[empty] = vectors[distances.topk(len(empty)).indices]
    return means


def _means(vectors: Tensor, codes: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Mean (clusters, dim) of each cluster, zero for an empty one, and the number of vectors (clusters,)."""
    counts = torch.bincount(codes, minlength=clusters)
    return sums_by_code(vectors, codes, clusters) / counts.clamp(min=1)[:, None], counts
