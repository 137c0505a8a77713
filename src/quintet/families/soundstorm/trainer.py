"""Owns `SoundStormTrainer`: the loop bound to the recipe `soundstorm`, for use in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quintet.data.audio import python_audio_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.data import coded
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.python_data import hold_tokens, python_token_splits
from quintet.families.soundstorm.task import SoundStormTask
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class SoundStormTrainer(PythonTrainer):
    """Train a `SoundStorm` on the codes of sounds: a folder, or a data set object.

        SoundStormTrainer(tokenizer=open_link("runs/codec"), data="sounds/", out="runs/storm", steps=10_000).train()

    `open_link` is that of `quintet.runs`. Without a model it is made to fit the tokenizer. With a `condition`, a
    trained mulan, it learns to make what a text says. Items of a data set hold `wavs`, samples at the codec's rate, and
    perhaps `texts`; or they are token ids, `semantic_token_ids` (tokens) and `acoustic_token_ids` (frames, levels), or
    the latter alone. A model of token ids needs no tokenizer, but without one nothing can be listened to.

    Any configuration key goes through `config={"optim.lr": 1e-4}`. The keywords of the trainer in soundstorm-pytorch
    are accepted too; docs/migration.md says what becomes of each.
    """

    config_class = SoundStormConfig
    task_class = SoundStormTask
    model_class = SoundStorm
    needs = ()

    @classmethod
    def splits_of(cls, recipe: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        assert isinstance(recipe, SoundStormTask)
        config = recipe.config
        if hold_tokens(data, declared):
            if recipe.listener is not None:
                raise UsageError("a data set of token ids has no sounds for the condition to hear; leave condition out")
            return python_token_splits(data, config, validation=validation, declared=declared)
        if config.model.semantic_codes is not None:
            raise UsageError("this model is told semantic tokens: give a data set of token ids, semantic and acoustic")
        tokenizer = recipe.link_to_codec()
        media = python_audio_splits(
            data,
            config.data,
            tokenizer.model.rate,
            validation=validation,
            declared=declared,
            captioned=_is_captioned(data[0]),
            opening=True,
        )
        return coded(config, tokenizer, recipe.listener, media)


def _is_captioned(item: Any) -> bool:
    values = item.values() if isinstance(item, Mapping) else item if isinstance(item, (tuple, list)) else ()
    return any(isinstance(value, str) for value in values)
