from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quintet.errors import UsageError
from quintet.nn import kmeans
from quintet.nn.kmeans import nearest


def blobs(count: int = 12, each: int = 40) -> tuple[Tensor, Tensor]:
    """Vectors around points of a grid, and the points."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.cartesian_prod(torch.arange(4.0), torch.arange(3.0))[:count] * 10
    return (positions.repeat(each, 1) + torch.randn(count * each, 2, generator=generator) * 0.1), positions


def test_every_blob_gets_a_cluster() -> None:
    """Random initial vectors would nearly always put two of twelve centres into one blob, and stay there."""
    vectors, positions = blobs()
    for seed in range(5):
        found = kmeans.fit(vectors, 12, seed)
        assert sorted(nearest(found.centres, positions).tolist()) == list(range(12))
        assert found.explained > 0.999
        assert found.rounds < kmeans.MAX_ITERATIONS


def test_the_same_seed_gives_the_same_centres() -> None:
    vectors = torch.randn(500, 8, generator=torch.Generator().manual_seed(3))
    assert torch.equal(kmeans.fit(vectors, 20, 1).centres, kmeans.fit(vectors, 20, 1).centres)
    assert not torch.equal(kmeans.fit(vectors, 20, 1).centres, kmeans.fit(vectors, 20, 2).centres)


def test_centres_are_the_means_of_their_vectors() -> None:
    vectors = torch.randn(300, 4, generator=torch.Generator().manual_seed(3))
    found = kmeans.fit(vectors, 7, 0)
    codes = nearest(vectors, found.centres)
    for cluster in range(7):
        torch.testing.assert_close(found.centres[cluster], vectors[codes == cluster].mean(0))
    within = (vectors - found.centres[codes]).square().sum()
    assert found.explained == pytest.approx(float(1 - within / (vectors - vectors.mean(0)).square().sum()), abs=1e-5)


def test_an_empty_cluster_restarts_at_a_distant_vector() -> None:
    vectors = torch.tensor([[0.0], [0.1], [0.2], [9.0]])
    centres = torch.tensor([[0.0], [500.0]])
    means = kmeans._refilled_means(vectors, nearest(vectors, centres), len(centres))
    assert means[1].item() == 9.0


def test_more_clusters_than_vectors_are_refused() -> None:
    vectors = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    found = kmeans.fit(vectors, 9, 0)
    assert len(nearest(vectors, found.centres).unique()) == 9
    assert found.explained == pytest.approx(1)
    with pytest.raises(UsageError, match="cannot make 10 clusters of 9 vectors"):
        kmeans.fit(vectors, 10, 0)


def test_identical_vectors_give_finite_centres() -> None:
    found = kmeans.fit(torch.ones(20, 3), 4, 0)
    assert found.centres.isfinite().all()
    assert found.explained == 1


class CountProducts(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten.addmm.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "chunks"), [("cpu", 4), ("meta", 1)])
def test_a_device_with_more_memory_than_cache_gets_larger_chunks(device: str, chunks: int) -> None:
    vectors, codebook = torch.zeros(2**13, 2, device=device), torch.zeros(2**11, 2, device=device)
    with CountProducts() as products:
        assert nearest(vectors, codebook).shape == (2**13,)
    assert products.count == chunks
