"""The public names of soundstorm-pytorch 0.6.1."""

from __future__ import annotations

from quintet.compat.soundstorm_pytorch.trainer import SoundStormTrainer

__all__ = ["SoundStormTrainer"]
