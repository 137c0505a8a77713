"""`PhenakiTrainer`: trains a `Phenaki` on video codes from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from torch import nn

from quintet import registry
from quintet.config import build
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.data import python_clip_splits
from quintet.families.phenaki.model import Phenaki
from quintet.families.phenaki.task import PhenakiTask
from quintet.nn.maskgit import MaskGit
from quintet.pipelines.base import Pipeline, PipelineLike
from quintet.sampling.masked import keys_from_settings
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.task import Task


class PhenakiTrainer(PythonTrainer):
    """Train a `Phenaki`, or its `MaskGit` alone, on codes of videos and images: a folder or a dataset object.

        tokenizer = CViViTPipeline.from_pretrained("runs/vtok")
        PhenakiTrainer(tokenizer=tokenizer, data="clips/", out="runs/phenaki", steps=10_000).train()
        PhenakiTrainer(Phenaki(maskgit, cvivit), data="clips/", out="runs/phenaki").train()

    Without `model`, a model that fits the tokenizer is created. Items of a dataset have `videos` or
    `video_codebook_ids`, and optionally `video_frame_mask`, `texts` or `text_embeds`. Training on codebook ids needs no
    tokenizer, but without one there are no samples.
    """

    config_class = PhenakiConfig
    task_class = PhenakiTask
    model_class = MaskGit
    needs = ()
    unclamped: ClassVar[bool] = False
    """Whether floating-point videos of a data set keep pixels outside [0, 1]."""
    projects_embeddings: ClassVar[bool] = False
    """Whether the task takes text embeddings beside the text encoder of the model."""
    caches_codes: ClassVar[bool] = True
    """Whether the videos of a Python data set are encoded once, instead of at every step."""

    def __init__(
        self,
        model: Phenaki | MaskGit | None = None,
        *,
        tokenizer: PipelineLike | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        super().__init__(model, tokenizer=tokenizer, **options)

    @classmethod
    def split_model(cls, model: Any) -> tuple[Any, dict[str, Pipeline[Any]], dict[str, nn.Module]]:
        if not isinstance(model, Phenaki):
            return model, {}, {}
        critic: dict[str, nn.Module] = {} if model.critic is None else {"critic": model.critic}
        return model.maskgit, {"tokenizer": _as_tokenizer(model.cvivit)}, critic

    @classmethod
    def keys_of(cls, model: Any) -> dict[str, Any]:
        if not isinstance(model, Phenaki):
            return {}
        keys = {
            **({} if model.given_settings is None else keys_from_settings(model.given_settings, model.maskgit.mask_id)),
            "loss.critic": True if model.critic is not None else None,
            "loss.frame_autoregressive": True if model.frame_autoregressive else None,
            "sample.overlap": model.overlap,
            "sample.later_steps": model.later_steps,
        }
        return {key: value for key, value in keys.items() if value is not None}

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        assert isinstance(task, PhenakiTask)
        return python_clip_splits(
            data,
            task.config,
            task.tokenizer,
            validation=validation,
            declared=declared,
            cache=cls.caches_codes,
            unclamped=cls.unclamped,
            projects_embeddings=cls.projects_embeddings,
        )


def _as_tokenizer(model: Any) -> Pipeline[Any]:
    """The tokenizer of a `Phenaki` as a pipeline, which is saved with the run."""
    name = type(model).__name__
    for _, entry in registry.entries():
        if name in entry.models:
            pipeline_class = entry.pipeline_class()
            config = build(entry.config_class(), overrides={"model": model.config.model_dump(mode="json")})
            return pipeline_class(config, {pipeline_class.exported: model}).freeze()
    raise UsageError(
        f"PhenakiTrainer saves the tokenizer with the run, which it cannot do for {name}: it is not a model of quintet"
    )
