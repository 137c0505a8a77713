"""`SoundStormTrainer`: trains a `SoundStorm` on a codec's codes from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from quintet.data.audio import PythonAudio, python_audio_splits
from quintet.data.splits import Splits
from quintet.data.tokenized import fresh_splits
from quintet.errors import UsageError
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.data import EmbeddedAudio, encode_splits, has_token_ids, python_token_splits
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.pipeline import codec_of
from quintet.families.soundstorm.task import SoundStormTask
from quintet.pipelines.base import PipelineLike
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class SoundStormTrainer(PythonTrainer):
    """Train a `SoundStorm` on the codes of audio clips: a folder, or a dataset object.

        codec = AudioCodecPipeline.from_pretrained("runs/codec")
        SoundStormTrainer(tokenizer=codec, data="audio/", out="runs/storm", steps=10_000).train()

    Without a model, one is built to fit the tokenizer. With `model.text` the model reads the texts of the items, word
    by word; with a `condition`, a trained mulan, it is conditioned on their embeddings. Items of a dataset hold `wavs`,
    samples at the codec's sampling rate, and optionally `texts` (or `text_embeds`, for model.text=vectors); or they are
    token ids, `semantic_token_ids` (tokens,) and `acoustic_token_ids` (frames, quantizers), or the latter alone. Token
    ids need no tokenizer, but without one the model cannot generate audio.
    """

    config_class = SoundStormConfig
    task_class = SoundStormTask
    model_class = SoundStorm
    needs = ()
    cache_codes: ClassVar[bool] = True
    """Whether the waveforms of a dataset object are encoded once, instead of at every step."""

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
            if config.model.text != "none":
                raise UsageError("a dataset of token ids has no captions: train it with model.text=none")
            if task.conditioner is not None:
                raise UsageError("a dataset of token ids has no audio for the condition to embed; remove condition")
            return python_token_splits(data, config, validation=validation, declared=declared)
        if config.model.semantic_codes is not None:
            raise UsageError(
                "this model is conditioned on semantic tokens: pass a dataset of semantic and acoustic token ids"
            )
        if config.data.windows != 1:
            raise UsageError("data.windows needs a folder of audio files; a Python dataset chooses its windows itself")
        tokenizer = codec_of(task.frozen)
        media = python_audio_splits(
            data,
            config.data,
            tokenizer.model.sample_rate,
            validation=validation,
            declared=declared,
            captioned=_is_captioned(data[0]) or config.model.text not in ("none", "vectors"),
            first_window_only=True,
            channels=tokenizer.model.channels,
            kind=EmbeddedAudio if config.model.text == "vectors" else PythonAudio,
        )
        if not cls.cache_codes and task.conditioner is None:
            return fresh_splits(tokenizer.token_encoder(config.model.num_quantizers), media)
        return encode_splits(config, tokenizer, task.conditioner, media)


def _is_captioned(item: Any) -> bool:
    values = item.values() if isinstance(item, Mapping) else item if isinstance(item, (tuple, list)) else ()
    return any(isinstance(value, str) for value in values)
