"""The public names of soundstorm-pytorch 0.6.1."""

from __future__ import annotations

from quintet.compat.soundstorm_pytorch.conformer import Conformer, ConformerWrapper
from quintet.compat.soundstorm_pytorch.soundstorm import SoundStorm, TextToSemantic
from quintet.compat.soundstorm_pytorch.soundstream import SoundStream
from quintet.compat.soundstorm_pytorch.trainer import SoundStormTrainer

__all__ = ["Conformer", "ConformerWrapper", "SoundStorm", "SoundStormTrainer", "SoundStream", "TextToSemantic"]
