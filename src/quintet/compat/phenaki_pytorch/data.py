"""The module `data` of phenaki-pytorch, whose names are refused."""

from __future__ import annotations

from quintet.compat.names import refuse_names

__getattr__ = refuse_names(
    __name__, "quintet's trainers read folders themselves; pass folder= to a trainer, or a data set of your own"
)
