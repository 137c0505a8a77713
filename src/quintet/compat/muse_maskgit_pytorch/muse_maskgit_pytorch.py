"""The names of the module `muse_maskgit_pytorch` of muse-maskgit-pytorch."""

from __future__ import annotations

from quintet.compat.muse_maskgit_pytorch import MaskGit, MaskGitTransformer, Muse, TokenCritic, Transformer

__all__ = ["MaskGit", "MaskGitTransformer", "Muse", "TokenCritic", "Transformer"]
