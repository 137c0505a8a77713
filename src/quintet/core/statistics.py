"""Owns what a forward pass reports for `after_step`: codebook counts, sums of vectors, candidate rows.

A forward pass changes no state. What it would like to change it reports here; the trainer adds the reports of
all micro-batches and ranks and hands the total to the recipe, if the step was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quintet.core import collectives


@dataclass
class Statistics:
    """`sums` are added; `rows` are laid one after the other in the order of the global batch."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)

    def __add__(self, other: Statistics) -> Statistics:
        sums = dict(self.sums)
        for name, value in other.sums.items():
            sums[name] = sums[name] + value if name in sums else value
        rows = dict(self.rows)
        for name, value in other.rows.items():
            rows[name] = torch.cat([rows[name], value]) if name in rows else value
        return Statistics(sums, rows)

    def over_ranks(self) -> Statistics:
        """The same for the whole global batch; every rank gets the same result."""
        with torch.no_grad():
            rows = {name: collectives.gather_uneven_rows(self.rows[name]) for name in sorted(self.rows)}
            return Statistics(collectives.sum_statistics(self.sums), rows)

    def named(self, prefix: str) -> Statistics:
        """Under `prefix/`, so that several owners can report side by side."""
        return Statistics(
            {f"{prefix}/{name}": value for name, value in self.sums.items()},
            {f"{prefix}/{name}": value for name, value in self.rows.items()},
        )

    def of(self, prefix: str) -> Statistics:
        """What was reported under `prefix/`, with the prefix taken off again."""
        start = f"{prefix}/"
        return Statistics(
            {name.removeprefix(start): value for name, value in self.sums.items() if name.startswith(start)},
            {name.removeprefix(start): value for name, value in self.rows.items() if name.startswith(start)},
        )
