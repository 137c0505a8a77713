"""Owns packed batches: items of different lengths one after another, means over a graph's edges, rows with gaps.

A packed tensor holds the rows of all items of a batch, `(rows of all items, dim)`, without padding. What has to look at
one item at a time finds it through `Packing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32


@dataclass(frozen=True)
class Packing:
    """How many rows each item of a packed tensor has."""

    lengths: tuple[int, ...]
    device: torch.device

    def __len__(self) -> int:
        """Rows of all items."""
        return sum(self.lengths)

    @cached_property
    def items(self) -> Tensor:
        """The item of each row."""
        counts = torch.tensor(self.lengths, device=self.device)
        return torch.repeat_interleave(torch.arange(len(counts), device=self.device), counts, output_size=len(self))

    @cached_property
    def starts(self) -> Tensor:
        """The first row of each item."""
        counts = torch.tensor(self.lengths, device=self.device)
        return counts.cumsum(0) - counts

    def split(self, packed: Tensor) -> tuple[Tensor, ...]:
        """One tensor an item."""
        return torch.split(packed, list(self.lengths))

    # --- padded -------------------------------------------------------------------------------------------------

    @cached_property
    def _padded_places(self) -> Tensor:
        """Where each row stands among the rows of the padded batch."""
        rows = torch.arange(len(self), device=self.device)
        return rows + (self.items * max(self.lengths) - self.starts[self.items])

    @cached_property
    def mask(self) -> Tensor:
        """Which places of the padded batch hold a row, `(items, longest)`."""
        mask = torch.zeros(len(self.lengths) * max(self.lengths), dtype=torch.bool, device=self.device)
        mask[self._padded_places] = True
        return mask.view(len(self.lengths), -1)

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """`(items, longest, …)`, with `value` behind the end of each item."""
        rows = packed.new_full((self.mask.numel(), *packed.shape[1:]), value)
        return rows.index_copy(0, self._padded_places, packed).view(*self.mask.shape, *packed.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """The rows of `pad` without the padding."""
        return padded.flatten(0, 1).index_select(0, self._padded_places)

    # --- with gaps ----------------------------------------------------------------------------------------------

    @cached_property
    def _gapped_places(self) -> Tensor:
        return torch.arange(1, len(self) + 1, device=self.device) + self.items

    @cached_property
    def present(self) -> Tensor:
        """1 at the rows of items and 0 in the gaps, `(rows with gaps, 1)`."""
        rows = torch.zeros(len(self) + len(self.lengths) + 1, 1, device=self.device)
        rows[self._gapped_places] = 1
        return rows

    def spread(self, packed: Tensor) -> Tensor:
        """One row of zeros before, between and behind the items: what a kernel of three may look at."""
        rows = packed.new_zeros(len(self.present), packed.shape[1])
        return rows.index_copy(0, self._gapped_places, packed)

    def gather(self, spread: Tensor) -> Tensor:
        """The rows of `spread` without the gaps."""
        return spread.index_select(0, self._gapped_places)


def packing(lengths: Sequence[int], device: torch.device) -> Packing:
    return Packing(tuple(int(length) for length in lengths), device)


def sums_at(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """The sum of the rows at each place, `(count, dim)`. In fp32 at least: bf16 would lose what many rows add."""
    exact = at_least_fp32(rows)
    return exact.new_zeros(count, rows.shape[1]).index_add(0, places, exact)


def means_at(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """The mean of the rows at each place, in their dtype; 0 where there is none."""
    numbers = counts_at(places, count).clamp(min=1)[:, None]
    return (sums_at(rows, places, count) / numbers).to(rows.dtype)


def counts_at(places: Tensor, count: int) -> Tensor:
    """How many rows each place has."""
    return torch.zeros(count, dtype=torch.int64, device=places.device).index_add_(0, places, torch.ones_like(places))


class GraphConvolution(nn.Module):
    """A node's new vector, from its own and the mean of its neighbours' (GraphSAGE, 1706.02216).

    `edges` are pairs (to, from), `(2, edges)`, both ways where the graph has no direction. Whether a node is a
    neighbour of itself is for the edges to say.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, out_dim)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        receivers, senders = edges
        around = means_at(nodes.index_select(0, senders), receivers, len(nodes))
        out: Tensor = self.linear(torch.cat([nodes, around], dim=-1))
        return out


class RowConvolution(nn.Module):
    """A convolution with a kernel of three along rows that lie as `Packing.spread` lays them.

    One matrix product: with the channels last there is nothing to transpose, and items of any length share it.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * dim, out_dim)

    def forward(self, rows: Tensor, present: Tensor) -> Tensor:
        """What stands in the gaps is not looked at, and what comes out there has no meaning."""
        rows = F.pad(rows * present.to(rows.dtype), (0, 0, 1, 1))
        out: Tensor = self.linear(torch.cat([rows[:-2], rows[1:-1], rows[2:]], dim=-1))
        return out
