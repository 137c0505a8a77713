"""VQ against vector-quantize-pytorch, and the development of its codebook."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vector_quantize_pytorch import VectorQuantize

from quintet.common.statistics import Statistics
from quintet.nn import kmeans
from quintet.nn.quantize import VectorQuantizer
from quintet.nn.quantize.vector import select_candidates


def pair(cosine: bool, code_dim: int) -> tuple[VectorQuantizer, VectorQuantize]:
    torch.manual_seed(0)
    ours = VectorQuantizer(16, 64, code_dim, cosine=cosine, decay=0.9, revive_below=0)
    library = VectorQuantize(
        16,
        64,
        codebook_dim=code_dim,
        use_cosine_sim=cosine,
        decay=0.9,
        commitment_weight=ours.commitment_weight,
        rotation_trick=False,
    )
    library.codebook = ours.codebook
    library._codebook.embed_avg.copy_(ours.vector_sums[None])
    if code_dim != 16:
        library.project_in.load_state_dict(ours.project_in.state_dict())
        library.project_out.load_state_dict(ours.project_out.state_dict())
    return ours, library


def clustered(num: int, clusters_: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters_, dim, generator=generator) * 3
    which = torch.randint(clusters_, (num,), generator=generator)
    return centres[which] + 0.1 * torch.randn(num, dim, generator=generator)


@pytest.mark.parametrize("code_dim", [16, 5])
@pytest.mark.parametrize("cosine", [False, True])
def test_equals_the_library(cosine: bool, code_dim: int) -> None:
    """Codes, values, loss, gradients, and the codebook after three steps of moving averages."""
    ours, library = pair(cosine, code_dim)
    for step in range(3):
        x = torch.randn(4, 50, 16, generator=torch.Generator().manual_seed(step))
        left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        result = ours(left)
        vectors, codes, loss = library(right)
        assert torch.equal(result.codes, codes)
        torch.testing.assert_close(result.vectors, vectors)
        torch.testing.assert_close(result.loss, loss)
        (result.vectors.pow(3).sum() + result.loss).backward()
        (vectors.pow(3).sum() + loss).backward()
        torch.testing.assert_close(left.grad, right.grad)
        ours.update(result.statistics, seed=0)
        torch.testing.assert_close(ours.codebook, library.codebook)
        torch.testing.assert_close(ours.cluster_size, library._codebook.cluster_size[0])
        torch.testing.assert_close(ours.vector_sums, library._codebook.embed_avg[0])


def test_equals_the_library_with_a_mask() -> None:
    ours, library = pair(False, 16)
    x = torch.randn(4, 50, 16)
    mask = torch.arange(50) < torch.tensor([50, 20, 7, 1])[:, None]
    result = ours(x, mask)
    vectors, codes, loss = library(x, mask=mask)
    assert torch.equal(result.codes, codes)
    torch.testing.assert_close(result.vectors, vectors)
    torch.testing.assert_close(result.loss, loss)
    ours.update(result.statistics, seed=0)
    torch.testing.assert_close(ours.codebook, library.codebook)


def test_nearest_in_parts_equals_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, codebook = torch.randn(100, 6).double(), torch.randn(33, 6).double()
    expected = torch.cdist(vectors, codebook).argmin(-1)
    assert torch.equal(kmeans.nearest(vectors, codebook), expected)
    for limit in (1, 33 * 7):
        monkeypatch.setattr(kmeans, "CPU_SCORES", limit)
        assert torch.equal(kmeans.nearest(vectors, codebook), expected)


def test_candidates_are_spread_over_the_valid_positions() -> None:
    latents = torch.arange(3 * 64, dtype=torch.float32).view(3, 64, 1)
    mask = torch.ones(3, 64, dtype=torch.bool)
    mask[1, ::2] = False
    mask[2, 5:] = False
    rows, real = select_candidates(latents, mask)
    rows, real = rows.view(3, -1), real.view(3, -1)
    assert rows[0].tolist() == list(range(0, 64, 4))
    assert rows[1].tolist() == [64 + 1 + 4 * row for row in range(16)]
    assert rows[2, :5].tolist() == [128 + row for row in range(5)]
    assert real.sum(-1).tolist() == [16, 16, 5]


def dying(num_codes: int = 8) -> tuple[VectorQuantizer, list[int]]:
    """A quantizer with some codes just above and some just below the limit of dead codes."""
    torch.manual_seed(0)
    quantizer = VectorQuantizer(4, num_codes, decay=0.5, revive_below=0.1)
    dead = [1, 4, 6]
    quantizer.cluster_size.fill_(1)
    quantizer.cluster_size[dead] = 0.1
    return quantizer, dead


def statistics_of(quantizer: VectorQuantizer, rows: Tensor) -> Statistics:
    """Every living code is used once; `rows` are the candidates."""
    count = (quantizer.cluster_size > 0.5).long()
    sums = {"count": count, "vectors": quantizer.codebook * count[:, None]}
    return Statistics(sums, {"vectors": rows, "real": torch.ones(len(rows), dtype=torch.uint8)})


def test_revival_replaces_exactly_the_dead_codes() -> None:
    quantizer, dead = dying()
    living = [code for code in range(8) if code not in dead]
    rows = torch.randn(10, 4) + 100
    before = quantizer.codebook.clone()
    quantizer.update(statistics_of(quantizer, rows), seed=5)
    torch.testing.assert_close(quantizer.codebook[living], before[living], rtol=1e-4, atol=1e-5)
    revived = quantizer.codebook[dead]
    assert all((rows == code).all(-1).any() for code in revived)
    assert len(revived.unique(dim=0)) == len(dead)
    assert (quantizer.cluster_size[dead] == 0.2).all()
    torch.testing.assert_close(quantizer.vector_sums[dead], revived * 0.2)


def test_revival_depends_only_on_the_seed() -> None:
    rows = torch.randn(10, 4)
    results = []
    for seed in (5, 5, 6):
        quantizer, _ = dying()
        torch.manual_seed(len(results))
        quantizer.update(statistics_of(quantizer, rows), seed=seed)
        results.append(quantizer.codebook)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_revival_with_few_or_no_candidates() -> None:
    for offered in (0, 2):
        quantizer, dead = dying()
        report = statistics_of(quantizer, torch.full((3, 4), 50.0))
        report.rows["real"] = (torch.arange(3) < offered).to(torch.uint8)
        quantizer.update(report, seed=0)
        assert (quantizer.codebook[dead] == 50).all(-1).sum() == offered
        assert quantizer.codebook.isfinite().all()


def test_no_revival_without_candidates_or_when_disabled() -> None:
    quantizer, dead = dying()
    report = statistics_of(quantizer, torch.full((3, 4), 50.0))
    quantizer.update(Statistics(report.sums), seed=0)
    assert not (quantizer.codebook[dead] == 50).any()
    quantizer.revive_below = 0
    quantizer.update(report, seed=0)
    assert not (quantizer.codebook[dead] == 50).any()


def test_update_without_statistics_changes_nothing() -> None:
    quantizer, _ = dying()
    before = quantizer.codebook.clone()
    quantizer.update(Statistics(), seed=0)
    assert torch.equal(before, quantizer.codebook)


def distortion(quantizer: VectorQuantizer, vectors: Tensor) -> float:
    return (quantizer(vectors[None]).vectors[0] - vectors).square().mean().item()


def test_kmeans_initialisation_beats_a_random_one() -> None:
    vectors = clustered(2000, 20, 8, seed=0)
    torch.manual_seed(0)
    quantizer = VectorQuantizer(8, 64)
    random = distortion(quantizer, vectors)
    quantizer.init_from_data(vectors, seed=1)
    started = distortion(quantizer, vectors)
    assert random > 1
    assert started < 0.02
    again = VectorQuantizer(8, 64)
    again.init_from_data(vectors, seed=1)
    assert torch.equal(quantizer.codebook, again.codebook)
    again.init_from_data(vectors, seed=2)
    assert not torch.equal(quantizer.codebook, again.codebook)


def test_kmeans_beats_its_random_initialisation() -> None:
    vectors = clustered(2000, 60, 8, seed=0)
    quantizer = VectorQuantizer(8, 64)
    quantizer.codebook.copy_(vectors[:64])
    random = distortion(quantizer, vectors)
    quantizer.init_from_data(vectors, seed=1)
    assert distortion(quantizer, vectors) < 0.6 * random


def test_kmeans_with_fewer_vectors_than_codes() -> None:
    quantizer = VectorQuantizer(4, 16)
    vectors = torch.randn(3, 4)
    quantizer.init_from_data(vectors, seed=0)
    torch.testing.assert_close(quantizer(vectors[None]).vectors[0], vectors)


def test_a_collapsed_codebook_recovers() -> None:
    """Far from the data one code gets all vectors; revival brings the others back into use."""
    torch.manual_seed(0)
    vectors = clustered(512, 16, 8, seed=0).view(8, 64, 8) + 10
    quantizer = VectorQuantizer(8, 16, decay=0.8, revive_below=0.5)
    quantizer.codebook.mul_(0.01)
    quantizer.vector_sums.mul_(0.01)
    first = quantizer(vectors)
    for step in range(60):
        quantizer.update(quantizer(vectors, return_candidates=step % 5 == 0).statistics, seed=step)
    last = quantizer(vectors)
    assert (first.statistics.sums["count"] > 0).sum() <= 4
    assert (last.statistics.sums["count"] > 0).sum() > 12
    assert last.loss < 0.1 * first.loss
