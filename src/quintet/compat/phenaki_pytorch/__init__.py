"""The public names of phenaki-pytorch 0.5.0."""

from __future__ import annotations

from quintet.compat.phenaki_pytorch.cvivit import CViViT
from quintet.compat.phenaki_pytorch.maskgit import MaskGit, TokenCritic
from quintet.compat.phenaki_pytorch.phenaki import Phenaki, make_video
from quintet.compat.phenaki_pytorch.trainer import CViViTTrainer, PhenakiTrainer

__all__ = ["CViViT", "CViViTTrainer", "MaskGit", "Phenaki", "PhenakiTrainer", "TokenCritic", "make_video"]
