"""The trainer of musiclm-pytorch, by its own keywords."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.mulan.model import MuLaN
from quintet.families.mulan.trainer import MuLaNTrainer as OwnMuLaNTrainer


class MuLaNTrainer(OwnMuLaNTrainer):
    """quintet's `MuLaNTrainer`, called as that of musiclm-pytorch or with quintet's own names."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        asked = own_arguments("MuLaNTrainer", positional, keywords)
        longest, model = asked.pop("max_samples", None), asked["model"]
        if longest is not None and isinstance(model, MuLaN):
            asked["config"] = {"data.seconds": longest / model.config.audio.sample_rate, **asked["config"]}
        super().__init__(**asked)
