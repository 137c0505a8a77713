"""Usages of the trainer of soundstorm-pytorch."""

from __future__ import annotations

from pathlib import Path

import torch

from compat.trainers import make_soundstorm, storm
from compat.usage import usage
from quintet.compat.soundstorm_pytorch import SoundStormTrainer


@usage("SoundStormTrainer", "without a model and data", refused=" needs ")
def nothing_to_train() -> None:
    SoundStormTrainer(None, num_train_steps=1, num_warmup_steps=1, batch_size=2)


@usage("SoundStormTrainer", "train on semantic and acoustic token ids, then generate")
def train(folder: Path) -> None:
    trainer = make_soundstorm(folder, num_train_steps=4)
    seen: list[dict[str, float]] = []
    trainer.train(log_fn=seen.append)
    assert [*seen[0]] == ["loss", "generator_loss", "critic_loss"]
    assert trainer.steps == 4
    assert trainer.scheduler.get_last_lr()[0] < trainer.lr
    generated = trainer.generate(cond_semantic_token_ids=torch.randint(0, 5, (2, 10)))
    assert generated.numel() == 2 * 20 * 3


@usage("SoundStormTrainer", "only_train_critic, with a self-critic")
def critic(folder: Path) -> None:
    trainer = make_soundstorm(folder, model=storm(self_token_critic=True), only_train_critic=True, num_train_steps=2)
    logs = trainer.train_step()
    assert logs["generator_loss"] == 0
    assert logs["critic_loss"] > 0


@usage("SoundStormTrainer", "load(path, restore_optimizer=False) takes the weights alone")
def weights_alone(folder: Path) -> None:
    trainer = make_soundstorm(folder, save_model_every=2)
    for _ in range(2):
        trainer.train_step()
    trainer.load(folder / "results" / "soundstorm.2.pt", restore_optimizer=False)
    assert trainer.steps == 0
