"""`Statistics`: values that a forward pass reports for `after_step`, such as codebook counts and candidate vectors.

A forward pass changes no state. It reports state updates as statistics; the trainer sums them over micro-batches and
ranks and passes the total to `Task.after_step` if the step was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quintet.common import collectives


@dataclass
class Statistics:
    """`sums` are added; `rows` are concatenated in the order of the global batch.

    `parts` records the number of rows of each micro-batch: in the global batch, the rows of all ranks for one
    micro-batch come before the rows of the next micro-batch.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __add__(self, other: Statistics) -> Statistics:
        sums = dict(self.sums)
        for name, value in other.sums.items():
            sums[name] = sums[name] + value if name in sums else value
        rows, parts = dict(self.rows), {name: self.parts_of(name) for name in self.rows}
        for name, value in other.rows.items():
            rows[name] = torch.cat([rows[name], value]) if name in rows else value
            parts[name] = (*parts.get(name, ()), *other.parts_of(name))
        return Statistics(sums, rows, parts)

    def parts_of(self, name: str) -> tuple[int, ...]:
        """Number of rows of each micro-batch."""
        return self.parts.get(name, (len(self.rows[name]),))

    def over_ranks(self) -> Statistics:
        """The statistics of the global batch; every rank gets the same result."""
        with torch.no_grad():
            rows = {name: self._gathered(name) for name in sorted(self.rows)}
            return Statistics(collectives.sum_statistics(self.sums), rows)

    def _gathered(self, name: str) -> Tensor:
        parts = torch.split(self.rows[name], list(self.parts_of(name)))
        return torch.cat([collectives.gather_uneven_rows(part) for part in parts])

    def zeros_like(self) -> Statistics:
        """Zero sums and empty rows with the same names and shapes, for a rank without items."""
        sums = {name: torch.zeros_like(value) for name, value in self.sums.items()}
        parts = {name: (0,) * len(self.parts_of(name)) for name in self.rows}
        return Statistics(sums, {name: value[:0] for name, value in self.rows.items()}, parts)

    def with_prefix(self, prefix: str) -> Statistics:
        """Add `prefix/` to every name, so that several modules can report side by side."""
        return Statistics(
            {f"{prefix}/{name}": value for name, value in self.sums.items()},
            {f"{prefix}/{name}": value for name, value in self.rows.items()},
            {f"{prefix}/{name}": value for name, value in self.parts.items()},
        )

    def strip_prefix(self, prefix: str) -> Statistics:
        """The entries whose names start with `prefix/`, without the prefix."""
        start = f"{prefix}/"
        return Statistics(
            {name.removeprefix(start): value for name, value in self.sums.items() if name.startswith(start)},
            {name.removeprefix(start): value for name, value in self.rows.items() if name.startswith(start)},
            {name.removeprefix(start): value for name, value in self.parts.items() if name.startswith(start)},
        )
