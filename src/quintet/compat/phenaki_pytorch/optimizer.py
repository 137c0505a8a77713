"""The module `optimizer` of phenaki-pytorch, whose names are refused."""

from __future__ import annotations

from quintet.compat.names import refuse_names

__getattr__ = refuse_names(__name__, "the trainers build their optimizer; in a loop of your own use one of torch.optim")
