"""Owns `SoundStormTrainer`: the loop bound to the recipe `soundstorm`, for use in Python."""

from __future__ import annotations

from quintet.core.python_trainer import PythonTrainer
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.recipe import SoundStormRecipe


class SoundStormTrainer(PythonTrainer):
    """Train a `SoundStorm` on the codes of a folder of sounds.

        SoundStormTrainer(tokenizer=open_link("runs/codec"), data="sounds/", out="runs/storm", steps=10_000).train()

    `open_link` is that of `quintet.runs`. Without a model it is made to fit the tokenizer. With a `condition`, a
    trained mulan, it learns to make what a text says. Any configuration key goes through
    `config={"optim.lr": 1e-4}`. The keywords of the trainer in soundstorm-pytorch are accepted too; docs/migration.md
    says what becomes of each.
    """

    config_class = SoundStormConfig
    recipe_class = SoundStormRecipe
    model_class = SoundStorm
    needs = ("tokenizer",)
