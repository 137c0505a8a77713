"""The public names of muse-maskgit-pytorch 0.3.5."""

from __future__ import annotations

from quintet.compat.muse_maskgit_pytorch.maskgit import MaskGit, Muse
from quintet.compat.muse_maskgit_pytorch.trainer import VQGanVAETrainer
from quintet.compat.muse_maskgit_pytorch.transformer import MaskGitTransformer, TokenCritic, Transformer
from quintet.compat.muse_maskgit_pytorch.vqgan import VQGanVAE

__all__ = ["MaskGit", "MaskGitTransformer", "Muse", "TokenCritic", "Transformer", "VQGanVAE", "VQGanVAETrainer"]
