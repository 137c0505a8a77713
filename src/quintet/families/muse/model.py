"""Owns the public names of Muse's models."""

from __future__ import annotations

from quintet.nn.maskgit import MaskGit, TokenCritic

__all__ = ["MaskGit", "TokenCritic"]
