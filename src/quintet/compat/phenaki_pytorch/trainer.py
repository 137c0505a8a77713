"""Trainers of phenaki-pytorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quintet.compat.items import (
    NamedItems,
    batch_of,
    cycle,
    fields_by_type,
    has_dtype,
    is_floats,
    is_texts,
    loader_of,
)
from quintet.compat.phenaki_pytorch.embeddings import EmbeddingTask
from quintet.compat.phenaki_pytorch.own import PhenakiTrainer as OwnPhenakiTrainer
from quintet.compat.phenaki_pytorch.phenaki import Phenaki
from quintet.compat.tokenizer_trainer import TokenizerTrainer
from quintet.compat.trainer import CompatTrainer, LogFunction
from quintet.errors import UsageError
from quintet.families.cvivit.trainer import CViViTTrainer as OwnCViViTTrainer
from quintet.families.phenaki.data import first_item
from quintet.training.phase import always
from quintet.training.trainer import Logs

FIELDS = {
    "videos": is_floats(4, 5),
    "texts": is_texts,
    "video_codebook_ids": has_dtype(torch.long),
    "video_frame_mask": has_dtype(torch.bool),
    "text_embeds": is_floats(3),
}
"""The fields of a batch, by the values that they accept."""


def never(step: int) -> bool:
    return False


class CViViTTrainer(TokenizerTrainer):
    """Trains a `CViViT` on a folder of videos or images, with the arguments of the original."""

    own_class = OwnCViViTTrainer

    def own_members(self, model: Any) -> dict[str, Any]:
        return {"unclamped": True}


class PhenakiTrainer(CompatTrainer):
    """Trains a `Phenaki` on videos, images or codes, with the arguments of the original.

    Items of a data set are read and encoded at every step, so that those of a random data set differ. A run that is
    resumed then continues with other items than it would have had; otherwise it continues exactly.
    """

    own_class = OwnPhenakiTrainer
    step_attribute = ""
    average_attribute = "ema_model"
    checkpoint_name = "model-{number}.pt"
    _fields: tuple[str, ...] | None

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        names = arguments.pop("declared", None)
        self._fields = None if names is None else tuple(names)
        if hasattr(arguments.get("data"), "__getitem__") and not isinstance(arguments["data"], str):
            # The tokenizer encodes in the training process: a GPU cannot be used by data workers.
            keys.setdefault("data.num_workers", 0)
        if names is not None:
            unknown = [name for name in names if name not in FIELDS]
            if unknown or len(set(names)) != len(names):
                raise UsageError(f"PhenakiTrainer: dataset_fields are different names of {', '.join(FIELDS)}")
            arguments["data"] = NamedItems(arguments.get("data"), names)
        self._projects = isinstance(model, Phenaki) and _has_projected_embeddings(model, arguments.get("data"))
        if isinstance(model, Phenaki) and not arguments.get("resume"):
            frames = keys.get("data.frames", self._default("num_frames"))
            model.check_num_frames(frames)
            # The window of the model may be longer than the clips; samples are as long as these, as in the original.
            keys.setdefault("sample.frames", frames)

    def own_members(self, model: Any) -> dict[str, Any]:
        """Videos keep their range, as in a hand-written loop."""
        if not self._projects:
            return {"unclamped": True}
        return {"unclamped": True, "projects_embeddings": True, "task_class": EmbeddingTask}

    def logs(self, logs: Logs) -> float:
        """The sum of the losses of generator and critic."""
        return sum(float(logs.get(f"{state.phase.name}/loss", 0.0)) for state in self.own.state.phases)

    def train(  # type: ignore[override]
        self,
        only_train_generator: bool = False,
        only_train_critic: bool = False,
        log_fn: LogFunction | None = None,
    ) -> None:
        self._train_only(only_train_generator, only_train_critic)
        super().train(log_fn)

    def train_step(self, only_train_generator: bool = False, only_train_critic: bool = False) -> float:
        self._train_only(only_train_generator, only_train_critic)
        loss: float = super().train_step()
        return loss

    def _train_only(self, generator: bool, critic: bool) -> None:
        """Train only the generator, or only the critic, from now on; or both again."""
        names = [state.phase.name for state in self.own.state.phases]
        if generator and critic:
            raise UsageError("PhenakiTrainer: only_train_generator and only_train_critic are exclusive")
        if critic and "critic" not in names:
            raise UsageError("PhenakiTrainer: only_train_critic=True, but this Phenaki has no critic")
        excluded = "critic" if generator else "generator" if critic else ""
        for state in self.own.state.phases:
            state.phase = replace(state.phase, active=never if state.phase.name == excluded else always)
        self.own.task.phases = [state.phase for state in self.own.state.phases]

    def save(self, milestone: Any, overwrite: bool = True) -> None:
        """Write a checkpoint to the folder `model-<milestone>.pt` in the results folder."""
        super().save(self._milestone(milestone), overwrite)

    def load(self, milestone: Any, restore_optimizer: bool = True) -> None:
        """Continue from the folder `model-<milestone>.pt` in the results folder."""
        super().load(self._milestone(milestone), restore_optimizer)

    def _milestone(self, milestone: Any) -> Path:
        folder: Path = self.results_folder
        return folder / f"model-{milestone}.pt"

    @property
    def phenaki(self) -> nn.Module:
        return self.unwrapped_model

    @property
    def train_num_steps(self) -> int:
        return self.num_train_steps

    @property
    def sample_num_frames(self) -> int:
        config: Any = self.own.config
        return int(config.sample.frames or config.data.frames)

    @property
    def sample_texts(self) -> list[str] | None:
        """The captions to sample, also those of `sample_texts_file_path`."""
        texts: Any = getattr(self.own.config.sample, "texts", None)
        return None if texts is None else list(texts)

    @property
    def opt(self) -> torch.optim.Optimizer:
        return self.optimizer_of()

    @property
    def unconditional(self) -> bool:
        model: Any = self.own.config.model
        return bool(model.text == "none")

    @property
    def image_size(self) -> Any:
        return self.own.task.frozen["tokenizer"].model.config.image_size

    @property
    def dataset_fields(self) -> tuple[str, ...] | None:
        """The fields of the values of an item; without `dataset_fields=`, known after the first step."""
        if self._fields is None and self.own.step:
            item = self.ds[0]
            values = item if isinstance(item, (tuple, list)) else (item,)
            self._fields = fields_by_type(batch_of([tuple(values)], self.merge), FIELDS)
        return self._fields

    @property
    def ds(self) -> Any:
        return super().ds if self.dataset is None else self.dataset

    @property
    def dl(self) -> Iterator[Any]:
        """Batches of the training items without end."""
        return cycle(loader_of(self.ds, self._micro_batch, self.merge))

    def data_tuple_to_kwargs(self, data: Sequence[Any]) -> dict[str, Any]:
        """The arguments of the model for the values of a batch."""
        if self._fields is None:
            self._fields = fields_by_type(data, FIELDS)
        return dict(zip(self._fields, data, strict=False))


def _has_projected_embeddings(model: Phenaki, data: Any) -> bool:
    """Whether the items have text embeddings that the projection of the model takes."""
    if data is None or isinstance(data, (str, Path)):
        return False
    with torch.random.fork_rng(devices=[]):  # an item may draw random numbers, and the seed of the run comes later
        vectors = first_item(data).get("vectors")
    return vectors is not None and model.train_on_embeddings(int(vectors.shape[-1]))
