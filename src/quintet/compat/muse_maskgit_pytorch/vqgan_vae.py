"""The names of the module `vqgan_vae` of muse-maskgit-pytorch."""

from __future__ import annotations

from quintet.compat.muse_maskgit_pytorch import VQGanVAE

__all__ = ["VQGanVAE"]
