"""The public names of musiclm-pytorch 0.2.8."""

from __future__ import annotations

from quintet.compat.musiclm_pytorch.trainer import MuLaNTrainer

__all__ = ["MuLaNTrainer"]
