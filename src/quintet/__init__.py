"""quintet: train and sample discrete-token generative models of images, video, audio and meshes on your own files."""

from __future__ import annotations

__version__ = "0.1.0"
