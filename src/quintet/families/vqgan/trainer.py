"""Owns `VQGanVAETrainer`: the loop bound to the recipe `vqgan`, for use in Python."""

from __future__ import annotations

__all__ = ["VQGanVAETrainer"]
