"""Trainers of meshgpt-pytorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from quintet.compat.items import NamedItems, loader_of, pad
from quintet.compat.meshgpt_pytorch.autoencoder import MeshAutoencoder
from quintet.compat.meshgpt_pytorch.given import OWN_RANGE, MeshItems
from quintet.compat.meshgpt_pytorch.own import MeshAutoencoderTrainer as OwnMeshAutoencoderTrainer
from quintet.compat.meshgpt_pytorch.own import MeshTransformerTrainer as OwnMeshTransformerTrainer
from quintet.compat.meshgpt_pytorch.transformer import MeshTransformer
from quintet.compat.trainer import CompatTrainer, number
from quintet.compat.views import OptimizerView, refuse_attribute
from quintet.training.trainer import Logs

PAD_ID = -1


class MeshTrainer(CompatTrainer):
    """What both trainers share."""

    results_attribute = "checkpoint_folder"
    step_attribute = "step"
    drop_last = True
    ignored: ClassVar[tuple[str, ...]] = ()
    """Fields of items that the model does not use."""

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        autoencoder = model.autoencoder if isinstance(model, MeshTransformer) else model
        is_compat = isinstance(autoencoder, MeshAutoencoder)
        settings = (autoencoder.coor_continuous_range, autoencoder.pad_id) if is_compat else (OWN_RANGE, PAD_ID)
        names = arguments.pop("declared", None) or self._default("data_kwargs")
        for name in ("data", "validation"):
            dataset = arguments.get(name)
            if hasattr(dataset, "__getitem__") and not isinstance(dataset, str):
                own = getattr(arguments["data"], "data_kwargs", None)
                arguments[name] = MeshItems(dataset, own or names, self.ignored, *settings)

    @staticmethod
    def merge(values: list[Tensor]) -> Tensor:
        return pad(values, PAD_ID)

    @staticmethod
    def step_tensor(step: int) -> Tensor:
        return torch.tensor(step)

    @property
    def optimizer(self) -> OptimizerView:
        return OptimizerView(self.own, self.optimizer_of(), self.max_grad_norm)

    @property
    def should_validate(self) -> bool:
        return self.val_dataset is not None

    @property
    def dataloader(self) -> Any:
        return loader_of(self.dataset, self._micro_batch, self.merge, self.drop_last)

    @property
    def val_dataloader(self) -> Any:
        if not self.should_validate:
            refuse_attribute(type(self).__name__, "val_dataloader", "there is no val_dataset")
        return loader_of(self.val_dataset, self._micro_batch, self.merge, self.drop_last)

    def next_data_to_forward_kwargs(self, dl_iter: Iterator[Any]) -> dict[str, Any]:
        """The arguments of the model for the next batch of a loader."""
        data = next(dl_iter)
        names = getattr(self.dataset, "data_kwargs", None) or self.data_kwargs
        named = dict(data) if isinstance(data, Mapping) else dict(zip(names, data, strict=False))
        return {name: value for name, value in named.items() if name not in self.ignored}


class MeshAutoencoderTrainer(MeshTrainer):
    """Trains a `MeshAutoencoder` on a data set of meshes, with the arguments of the original."""

    own_class = OwnMeshAutoencoderTrainer
    average_attribute = "ema_model"
    checkpoint_name = "mesh-autoencoder.ckpt.{number}.pt"
    ignored = ("texts", "text_embeds")

    def logs(self, logs: Logs) -> dict[str, float]:
        parts = {"total_loss": "loss", "recon_loss": "reconstruction", "commit_loss": "quantizer"}
        return {shown: number(logs, f"autoencoder/{name}") for shown, name in parts.items()}

    @property
    def ema_tokenizer(self) -> Any:
        """The model with averaged weights."""
        return self.ema_model.ema_model

    def tokenize(self, *arguments: Any, **keywords: Any) -> Any:
        """Codes of meshes, by the model with averaged weights."""
        return self.ema_tokenizer.tokenize(*arguments, **keywords)


class MeshTransformerTrainer(MeshTrainer):
    """Trains a `MeshTransformer` on a data set of meshes, with the arguments of the original.

    Items are read and encoded at every step, so that those of a random data set differ. A run that is resumed then
    continues with other items than it would have had; with a data set that is not random, it continues exactly.
    """

    own_class = OwnMeshTransformerTrainer
    checkpoint_name = "mesh-transformer.ckpt.{number}.pt"

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        super().adapt(model, arguments, keys)
        data = arguments.get("data")
        if isinstance(model, MeshTransformer) and isinstance(data, NamedItems) and len(data):
            first = data[0]
            if isinstance(first, Mapping) and "text_embeds" in first:
                model.use_text_embeds(first["text_embeds"].shape[-1])

    def logs(self, logs: Logs) -> dict[str, float]:
        return {"loss": number(logs, "transformer/loss")}
