"""The Frechet distance, compared with known values."""

from __future__ import annotations

import pytest
import torch

from quintet.nn.similarity import frechet_distance


def test_the_distance_of_a_set_to_itself_is_zero() -> None:
    rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    assert frechet_distance(rows, rows) == pytest.approx(0, abs=1e-9)


def test_the_distance_sums_over_independent_dimensions() -> None:
    # Four corners: exact means and deviations, and no correlation.
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64) * 0.75**0.5
    ours = corners * torch.tensor([2.0, 3.0]) + torch.tensor([1.0, 0.0])
    theirs = corners * torch.tensor([5.0, 3.0]) + torch.tensor([0.0, 4.0])
    assert frechet_distance(ours, theirs) == pytest.approx(1 + 16 + (2 - 5) ** 2 + 0)
    assert frechet_distance(theirs, ours) == pytest.approx(frechet_distance(ours, theirs))


def test_fewer_vectors_than_dimensions() -> None:
    generator = torch.Generator().manual_seed(0)
    near, far = (torch.randn(4, 16, generator=generator) + shift for shift in (0.0, 3.0))
    assert 0 < frechet_distance(near, near + 0.1) < frechet_distance(near, far)
