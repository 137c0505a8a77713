"""The public names of phenaki-pytorch 0.5.0."""

from __future__ import annotations

from quintet.compat.phenaki_pytorch.trainer import PhenakiTrainer

__all__ = ["PhenakiTrainer"]
