"""Packed batches (items of different lengths without padding), graph convolution and convolution along packed rows.

A packed tensor `(rows of all items, dim)` holds the rows of all items of a batch, one item after the other. `Packing`
knows which rows belong to which item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.precision import at_least_fp32


@dataclass(frozen=True)
class Packing:
    """The number of rows of each item of a packed tensor."""

    lengths: tuple[int, ...]
    device: torch.device
    known_counts: Tensor | None = field(default=None, repr=False, compare=False)
    """The lengths as a tensor on the device, if there is one; copying them to a GPU would wait for it."""

    def __len__(self) -> int:
        """Number of rows of all items."""
        return sum(self.lengths)

    @cached_property
    def items(self) -> Tensor:
        """The index of the item of each row, `(rows,)`."""
        counts = self.counts
        return torch.repeat_interleave(torch.arange(len(counts), device=self.device), counts, output_size=len(self))

    @cached_property
    def starts(self) -> Tensor:
        """The index of the first row of each item, `(items,)`."""
        return self.counts.cumsum(0) - self.counts

    @cached_property
    def counts(self) -> Tensor:
        """The number of rows of each item, `(items,)`."""
        if self.known_counts is not None:
            return self.known_counts
        return torch.tensor(self.lengths, device=self.device)

    def split(self, packed: Tensor) -> tuple[Tensor, ...]:
        """One tensor per item."""
        return torch.split(packed, list(self.lengths))

    # --- padded -------------------------------------------------------------------------------------------------

    @cached_property
    def _padded_indices(self) -> Tensor:
        """The index of each row in the flattened padded batch, `(rows,)`."""
        rows = torch.arange(len(self), device=self.device)
        return rows + (self.items * max(self.lengths) - self.starts[self.items])

    @cached_property
    def mask(self) -> Tensor:
        """Mask of the rows in the padded batch, `(items, longest)`; False at padding."""
        mask = torch.zeros(len(self.lengths) * max(self.lengths), dtype=torch.bool, device=self.device)
        mask[self._padded_indices] = True
        return mask.view(len(self.lengths), -1)

    def pad(self, packed: Tensor, value: float = 0) -> Tensor:
        """`(rows, …)` to `(items, longest, …)`, padded with `value` at the end of each item."""
        rows = packed.new_full((self.mask.numel(), *packed.shape[1:]), value)
        return rows.index_copy(0, self._padded_indices, packed).view(*self.mask.shape, *packed.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """The inverse of `pad`: `(items, longest, …)` to `(rows, …)`."""
        return padded.flatten(0, 1).index_select(0, self._padded_indices)

    # --- with gaps ----------------------------------------------------------------------------------------------

    @cached_property
    def _gapped_indices(self) -> Tensor:
        return torch.arange(1, len(self) + 1, device=self.device) + self.items

    @cached_property
    def present(self) -> Tensor:
        """1 at the rows of items and 0 at gaps, `(rows with gaps, 1)`."""
        rows = torch.zeros(len(self) + len(self.lengths) + 1, 1, device=self.device)
        rows[self._gapped_indices] = 1
        return rows

    def spread(self, packed: Tensor) -> Tensor:
        """Insert one row of zeros before, between and after the items, as padding for a kernel of size three."""
        rows = packed.new_zeros(len(self.present), packed.shape[1])
        return rows.index_copy(0, self._gapped_indices, packed)

    def gather(self, spread: Tensor) -> Tensor:
        """The inverse of `spread`: the rows without the gaps."""
        return spread.index_select(0, self._gapped_indices)


def packing(lengths: Sequence[int], device: torch.device) -> Packing:
    return Packing(tuple(int(length) for length in lengths), device)


def sums_at(rows: Tensor, indices: Tensor, count: int) -> Tensor:
    """Scatter-sum of `rows` `(rows, dim)` by `indices` `(rows,)`, `(count, dim)`, at least in fp32 for accuracy."""
    exact = at_least_fp32(rows)
    return exact.new_zeros(count, rows.shape[1]).index_add(0, indices, exact)


def means_at(rows: Tensor, indices: Tensor, count: int) -> Tensor:
    """Scatter-mean of `rows` `(rows, dim)` by `indices` `(rows,)`, `(count, dim)`; 0 for an index without rows."""
    numbers = counts_at(indices, count).clamp(min=1)[:, None]
    return (sums_at(rows, indices, count) / numbers).to(rows.dtype)


def counts_at(indices: Tensor, count: int) -> Tensor:
    """The number of rows of each index, `(count,)`."""
    return torch.zeros(count, dtype=torch.int64, device=indices.device).index_add_(0, indices, torch.ones_like(indices))


class GraphConvolution(nn.Module):
    """Graph convolution from a node's vector and the mean of its neighbours' vectors (GraphSAGE, 1706.02216).

    `edges` `(2, edges)` are pairs (receiver, sender); an undirected graph has both directions. A node is its own
    neighbour only if `edges` contains that pair.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, out_dim)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        receivers, senders = edges
        neighbours = means_at(nodes.index_select(0, senders), receivers, len(nodes))
        out: Tensor = self.linear(torch.cat([nodes, neighbours], dim=-1))
        return out


class RowConvolution(nn.Module):
    """A 1-D convolution of kernel size three along the rows of `Packing.spread`.

    It is one matrix product: channels are last, so nothing is transposed, and items of any length share the product.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * dim, out_dim)

    def forward(self, rows: Tensor, present: Tensor) -> Tensor:
        """`rows` `(rows with gaps, dim)`. Input at gaps is ignored, and output at gaps is meaningless."""
        rows = F.pad(rows * present.to(rows.dtype), (0, 0, 1, 1))
        out: Tensor = self.linear(torch.cat([rows[:-2], rows[1:-1], rows[2:]], dim=-1))
        return out
