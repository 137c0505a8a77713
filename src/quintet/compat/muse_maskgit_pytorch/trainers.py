"""The names of the module `trainers` of muse-maskgit-pytorch."""

from __future__ import annotations

from quintet.compat.muse_maskgit_pytorch import VQGanVAETrainer

__all__ = ["VQGanVAETrainer"]
