"""`SoundStormTrainer`: trains a `SoundStorm` on a codec's codes from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from quintet.data.audio import python_audio_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.data import encode_splits, has_token_ids, python_token_splits
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.pipeline import codec_of
from quintet.families.soundstorm.task import SoundStormTask
from quintet.pipelines.base import PipelineLike
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class SoundStormTrainer(PythonTrainer):
    """Train a `SoundStorm` on the codes of sounds: a folder, or a data set object.

        codec = AudioCodecPipeline.from_pretrained("runs/codec")
        SoundStormTrainer(tokenizer=codec, data="sounds/", out="runs/storm", steps=10_000).train()

    Without a model it is made to fit the tokenizer. With a `condition`, a trained mulan, it learns to make what a text
    says. Items of a data set hold `wavs`, samples at the codec's rate, and perhaps `texts`; or they are token ids,
    `semantic_token_ids` (tokens) and `acoustic_token_ids` (frames, levels), or the latter alone. A model of token ids
    needs no tokenizer, but without one nothing can be listened to.
    """

    config_class = SoundStormConfig
    task_class = SoundStormTask
    model_class = SoundStorm
    needs = ()

    def __init__(
        self,
        model: SoundStorm | None = None,
        *,
        tokenizer: PipelineLike | None = None,
        condition: PipelineLike | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        super().__init__(model, tokenizer=tokenizer, condition=condition, **options)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        assert isinstance(task, SoundStormTask)
        config = task.config
        if has_token_ids(data, declared):
            if task.conditioner is not None:
                raise UsageError("a data set of token ids has no sounds for the condition to hear; leave condition out")
            return python_token_splits(data, config, validation=validation, declared=declared)
        if config.model.semantic_codes is not None:
            raise UsageError("this model is told semantic tokens: give a data set of token ids, semantic and acoustic")
        tokenizer = codec_of(task.frozen)
        media = python_audio_splits(
            data,
            config.data,
            tokenizer.model.sample_rate,
            validation=validation,
            declared=declared,
            captioned=_is_captioned(data[0]),
            opening=True,
        )
        return encode_splits(config, tokenizer, task.conditioner, media)


def _is_captioned(item: Any) -> bool:
    values = item.values() if isinstance(item, Mapping) else item if isinstance(item, (tuple, list)) else ()
    return any(isinstance(value, str) for value in values)
