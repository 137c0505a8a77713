"""The names of the module `phenaki_pytorch` of phenaki-pytorch."""

from __future__ import annotations

from quintet.compat.phenaki_pytorch import CViViT, MaskGit, Phenaki, TokenCritic, make_video

__all__ = ["CViViT", "MaskGit", "Phenaki", "TokenCritic", "make_video"]
