"""Trainer with the keywords of soundstorm-pytorch."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.soundstorm.trainer import SoundStormTrainer as OwnSoundStormTrainer


class SoundStormTrainer(OwnSoundStormTrainer):
    """quintet's `SoundStormTrainer` that also accepts the keywords of soundstorm-pytorch."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("SoundStormTrainer", positional, keywords, self.config_class.FROZEN_KEYS))
