"""Owns the Frechet distance of two sets of vectors: how far apart they are, each taken for a normal distribution."""

from __future__ import annotations

import torch
from torch import Tensor


def frechet_distance(ours: Tensor, theirs: Tensor) -> float:
    """Of vectors (ours, dim) and (theirs, dim), at least two of each; in double precision."""
    ours, theirs = ours.double(), theirs.double()
    between = (ours.mean(0) - theirs.mean(0)).square().sum()
    first, second = _covariance(ours), _covariance(theirs)
    # The trace of the root of a product is that of a symmetric matrix with the same eigenvalues, which are real.
    root = _root(first)
    shared = torch.linalg.eigvalsh(root @ second @ root).clamp(min=0).sqrt().sum()
    return float(between + first.trace() + second.trace() - 2 * shared)


def _covariance(vectors: Tensor) -> Tensor:
    centred = vectors - vectors.mean(0)
    return centred.T @ centred / (len(vectors) - 1)


def _root(matrix: Tensor) -> Tensor:
    values, directions = torch.linalg.eigh(matrix)
    root: Tensor = (directions * values.clamp(min=0).sqrt()) @ directions.T
    return root
