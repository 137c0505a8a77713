"""The names of the module `cvivit_trainer` of phenaki-pytorch."""

from __future__ import annotations

from quintet.compat.phenaki_pytorch import CViViTTrainer

__all__ = ["CViViTTrainer"]
