"""Packed batches: round trips, independence of items, and means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quintet.nn.graph import GraphConvolution, Packing, RowConvolution, counts_at, means_at, packing, sums_at

LENGTHS = (3, 1, 4)


@pytest.fixture
def rows() -> Packing:
    return packing(LENGTHS, torch.device("cpu"))


def test_padding_and_gaps_round_trip(rows: Packing) -> None:
    packed = torch.randn(8, 2)
    padded = rows.pad(packed, -7)
    assert padded.shape == (3, 4, 2)
    assert rows.mask.sum(1).tolist() == [*LENGTHS]
    assert (padded[~rows.mask] == -7).all()
    assert torch.equal(padded[rows.mask], packed)
    assert torch.equal(rows.unpad(padded), packed)

    spread = rows.spread(packed)
    assert rows.present[:, 0].tolist() == [0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0]
    assert (spread[rows.present[:, 0] == 0] == 0).all()
    assert torch.equal(rows.gather(spread), packed)
    assert [len(part) for part in rows.split(packed)] == [*LENGTHS]
    assert rows.items.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert rows.starts.tolist() == [0, 3, 4]


def test_padding_keeps_integer_and_bool_dtypes(rows: Packing) -> None:
    assert rows.pad(torch.arange(8), -1).tolist() == [[0, 1, 2, -1], [3, -1, -1, -1], [4, 5, 6, 7]]
    assert torch.equal(rows.pad(torch.ones(8, dtype=torch.bool)), rows.mask)


def test_means_equal_a_loop() -> None:
    values, positions = torch.randn(20, 3, dtype=torch.float64), torch.randint(0, 6, (20,))
    positions[positions == 4] = 5
    means = means_at(values, positions, 6)
    for position in range(6):
        own = values[positions == position]
        torch.testing.assert_close(means[position], own.mean(0) if len(own) else torch.zeros(3, dtype=torch.float64))
    assert counts_at(positions, 6).tolist() == [int((positions == position).sum()) for position in range(6)]


def test_sums_of_bf16_are_accurate() -> None:
    # In bf16 256 + 1 is 256.
    total = sums_at(torch.ones(1000, 1, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64), 1)
    assert total.item() == 1000
    mean = means_at(torch.ones(1000, 1, dtype=torch.bfloat16), torch.zeros(1000, dtype=torch.int64), 1)
    assert mean.dtype == torch.bfloat16
    assert mean.item() == 1


def test_a_graph_convolution_depends_only_on_neighbours() -> None:
    layer = GraphConvolution(4, 5).double()
    nodes = torch.randn(5, 4, dtype=torch.float64)
    edges = torch.tensor([[0, 0, 1, 1, 2, 3, 4], [0, 1, 0, 1, 2, 3, 4]])
    out = layer(nodes, edges)
    around = nodes.clone()
    around[:2] = nodes[:2].mean(0)
    torch.testing.assert_close(out, layer.linear(torch.cat([nodes, around], 1)))
    moved = nodes.clone()
    moved[1] += 1
    assert (layer(moved, edges) != out).any(1).tolist() == [True, True, False, False, False]


def test_a_row_convolution_treats_items_independently(rows: Packing) -> None:
    layer = RowConvolution(3, 5).double()
    plain = nn.Conv1d(3, 5, 3, padding=1).double()
    with torch.no_grad():
        plain.weight.copy_(layer.linear.weight.view(5, 3, 3).transpose(1, 2))
        plain.bias.copy_(layer.linear.bias)
    packed = torch.randn(8, 3, dtype=torch.float64)
    spread = rows.spread(packed) + (1 - rows.present.double()) * 99
    out = rows.gather(layer(spread, rows.present))
    expected = torch.cat([plain(part.T[None])[0].T for part in rows.split(packed)])
    torch.testing.assert_close(out, expected)


def test_gradients_reach_the_rows_and_not_the_gaps(rows: Packing) -> None:
    layer = RowConvolution(3, 3).double()
    spread = rows.spread(torch.randn(8, 3, dtype=torch.float64)).requires_grad_()
    rows.gather(layer(spread, rows.present)).square().sum().backward()
    assert spread.grad is not None
    assert torch.equal((spread.grad != 0).any(1), rows.present[:, 0] > 0)


def test_bf16_autocast_trains(rows: Packing) -> None:
    convolution, graph = RowConvolution(4, 4), GraphConvolution(4, 4)
    packed = torch.randn(8, 4, requires_grad=True)
    edges = torch.arange(8).expand(2, -1)
    with torch.autocast("cpu", torch.bfloat16):
        out = convolution(F.silu(rows.spread(graph(graph(packed, edges), edges))), rows.present)
    out.float().sum().backward()
    assert packed.grad is not None
    assert packed.grad.isfinite().all()
