"""Trainer with the keywords of phenaki-pytorch."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.phenaki.trainer import PhenakiTrainer as OwnPhenakiTrainer


class PhenakiTrainer(OwnPhenakiTrainer):
    """quintet's `PhenakiTrainer` that also accepts the keywords of phenaki-pytorch."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("PhenakiTrainer", positional, keywords, self.config_class.FROZEN_KEYS))
