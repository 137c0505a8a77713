"""Trainer with the keywords of musiclm-pytorch."""

from __future__ import annotations

from typing import Any

from quintet.compat.translation import own_arguments
from quintet.families.mulan.model import MuLaN
from quintet.families.mulan.trainer import MuLaNTrainer as OwnMuLaNTrainer


class MuLaNTrainer(OwnMuLaNTrainer):
    """quintet's `MuLaNTrainer` that also accepts the keywords of musiclm-pytorch."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        arguments = own_arguments("MuLaNTrainer", positional, keywords)
        max_samples, model = arguments.pop("max_samples", None), arguments["model"]
        if max_samples is not None and isinstance(model, MuLaN):
            arguments["config"] = {"data.seconds": max_samples / model.config.audio.sample_rate, **arguments["config"]}
        super().__init__(**arguments)
