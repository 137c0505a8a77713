"""Trainer of soundstorm-pytorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quintet.compat.items import pad
from quintet.compat.trainer import CompatTrainer, number
from quintet.compat.views import SchedulerView
from quintet.families.soundstorm.trainer import SoundStormTrainer as OwnSoundStormTrainer
from quintet.training.trainer import Logs


class SoundStormTrainer(CompatTrainer):
    """Trains a `SoundStorm` on semantic and acoustic token ids, with the arguments of the original."""

    own_class = OwnSoundStormTrainer
    checkpoint_name = "soundstorm.{step}.pt"

    @staticmethod
    def merge(values: list[Tensor]) -> Tensor:
        return pad(values, 0)

    def logs(self, logs: Logs) -> dict[str, float]:
        """`loss`, and its parts `generator_loss` and `critic_loss`."""
        own_critic = number(logs, "generator/self_critic")
        critic = number(logs, "critic/loss") + own_critic
        generator = number(logs, "generator/loss") - own_critic
        return {"loss": generator + critic, "generator_loss": generator, "critic_loss": critic}

    @property
    def optim(self) -> torch.optim.Optimizer:
        return self.optimizer_of()

    @property
    def scheduler(self) -> SchedulerView:
        return SchedulerView(self.own)

    def generate(self, *arguments: Any, **keywords: Any) -> Any:
        """What the model generates."""
        model: Any = self.unwrapped_model
        return model.generate(*arguments, **keywords)
