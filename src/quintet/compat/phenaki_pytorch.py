"""The trainer of phenaki-pytorch, by its own keywords."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.phenaki.trainer import PhenakiTrainer as OwnPhenakiTrainer


class PhenakiTrainer(OwnPhenakiTrainer):
    """quintet's `PhenakiTrainer`, called as that of phenaki-pytorch or with quintet's own names."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(**own_arguments("PhenakiTrainer", positional, keywords, self.config_class.FROZEN_KEYS))
