"""Trainer of musiclm-pytorch."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch

from quintet.compat.items import fields_by_type, has_dtype, is_floats, is_texts
from quintet.compat.model import CompatModel
from quintet.compat.trainer import CompatTrainer, number
from quintet.families.mulan.model import MuLaN
from quintet.families.mulan.trainer import MuLaNTrainer as OwnMuLaNTrainer
from quintet.training.trainer import Logs

FIELDS = {"wavs": is_floats(2, 3), "raw_texts": is_texts, "texts": has_dtype(torch.long)}
"""The fields of a batch, by the values that they accept."""


class MuLaNTrainer(CompatTrainer):
    """Trains a `MuLaN` on a data set of clips and texts, with the arguments of the original."""

    own_class = OwnMuLaNTrainer
    model_attribute = "mulan"
    checkpoint_name = "mulan.{step}.pt"
    drop_last = True

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        samples, data = arguments.pop("max_samples", None), arguments.get("data")
        trained = model.training_parts().model if isinstance(model, CompatModel) else model
        if isinstance(trained, MuLaN):
            audio = trained.config.audio
            keys.setdefault("data.seconds", audio.max_seconds if samples is None else samples / audio.sample_rate)
        if isinstance(data, Sized) and not isinstance(data, str) and not arguments.get("resume"):
            keys.setdefault("train.steps", max(1, len(data)))

    def logs(self, logs: Logs) -> dict[str, float]:
        return {"loss": number(logs, "mulan/loss")}

    @property
    def optim(self) -> torch.optim.Optimizer:
        return self.optimizer_of()

    @property
    def ds_fields(self) -> tuple[str, ...]:
        """The fields of the values of a batch."""
        return fields_by_type(next(self.dl_iter), FIELDS)

    def data_tuple_to_kwargs(self, data: Sequence[Any]) -> dict[str, Any]:
        """The arguments of the model for the values of a batch; clips are cut to `data_max_length`."""
        named = dict(zip(fields_by_type(data, FIELDS), data, strict=True))
        return {**named, "wavs": named["wavs"][..., : self.data_max_length]}
