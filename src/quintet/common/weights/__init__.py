"""Weights on disk: checkpoints and exported folders, and loading models from them."""
