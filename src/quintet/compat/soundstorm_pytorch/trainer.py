"""Trainer of soundstorm-pytorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quintet.compat.items import pad
from quintet.compat.soundstorm_pytorch.soundstorm import SoundStorm
from quintet.compat.soundstorm_pytorch.tokens import SoundStormTrainer as OwnSoundStormTrainer
from quintet.compat.soundstorm_pytorch.tokens import TokenItems
from quintet.compat.trainer import CompatTrainer, number
from quintet.compat.views import SchedulerView
from quintet.training.trainer import Logs


class SoundStormTrainer(CompatTrainer):
    """Trains a `SoundStorm` on semantic and acoustic token ids, with the arguments of the original."""

    own_class = OwnSoundStormTrainer
    checkpoint_name = "soundstorm.{step}.pt"

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        pad_id, semantic_pad_id = (model.pad_id, model.semantic_pad_id) if isinstance(model, SoundStorm) else (None, -1)
        for name in ("data", "validation"):
            dataset = arguments.get(name)
            if hasattr(dataset, "__getitem__") and not isinstance(dataset, str):
                arguments[name] = TokenItems(dataset, pad_id, semantic_pad_id)

    @staticmethod
    def merge(values: list[Tensor]) -> Tensor:
        return pad(values, 0)

    def logs(self, logs: Logs) -> dict[str, float]:
        """`loss`, and its parts `generator_loss` and `critic_loss`."""
        config: Any = self.own.config
        own_critic, weight = number(logs, "generator/self_critic"), config.loss.critic_weight
        critic = number(logs, "critic/loss") + own_critic
        total = number(logs, "generator/loss")
        return {
            "loss": total + number(logs, "critic/loss"),
            "generator_loss": total - weight * own_critic,
            "critic_loss": critic,
        }

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
