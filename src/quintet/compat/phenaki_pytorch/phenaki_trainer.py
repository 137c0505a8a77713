"""The names of the module `phenaki_trainer` of phenaki-pytorch."""

from __future__ import annotations

from quintet.compat.phenaki_pytorch import PhenakiTrainer

__all__ = ["PhenakiTrainer"]
