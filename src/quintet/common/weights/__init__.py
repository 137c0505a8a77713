"""Weights on disk: checkpoints and exported folders, and models built back from them."""
