"""Training of quintet's side for slices of CPU seconds, through its own task, data loader and optimizer.

A worker passes a task, its data and a measurement; the loop is `Trainer.train_step`. SETTINGS of a worker is a learning
rate, for the peer's sizes and its optimizer, or the name of a preset, for the recipe's own sizes and settings. The
learning rate does not decay in either, so that any moment of a training can be compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import loss_task
from quintet import config, runs
from quintet.common.batch import Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.config import RunConfig
from quintet.data.splits import Splits
from quintet.nn.maskgit import MaskGit
from quintet.nn.text import ByteTextEncoder, WordTextEncoder
from quintet.pipelines.base import Pipeline
from quintet.training.run_folder import Run
from quintet.training.task import Task
from quintet.training.trainer import Trainer
from worker import TimedTraining, count_parameters, serve

ENDLESS: Mapping[str, Any] = {
    "train.steps": 1_000_000,
    "optim.schedule": "constant",
    "data.num_workers": 0,
    "log.trackers": [],
}


def make_task(
    schema: type[RunConfig],
    settings: str,
    frozen: Mapping[str, Pipeline[Any]],
    peer_sizes: Mapping[str, Any],
    same_task: Mapping[str, Any] | None = None,
) -> Task[Any]:
    """A task with new weights; SETTINGS is a learning rate, which adds `peer_sizes`, or a preset.

    `same_task` are the keys without which the items would differ from the peer's.
    """
    keys = {**ENDLESS, **(same_task or {})}
    if settings in schema.PRESETS:
        return runs.make_task(config.build(schema, preset=settings, overrides=keys), frozen)
    trained = {
        "train.batch_size": loss_task.TRAIN_BATCH,
        "optim.lr": float(settings),
        "optim.warmup_steps": loss_task.WARMUP_STEPS,
        "optim.betas": loss_task.BETAS,
    }
    return runs.make_task(config.build(schema, overrides={**keys, **trained, **peer_sizes}), frozen)


def serve_training(
    ours: Task[Any],
    train: Dataset,
    held_out: Dataset,
    measure: Callable[[Any], dict[str, float]],
    about: Mapping[str, Any],
    seconds: str,
) -> None:
    """Serve slices of training; `measure` gets the trained module, and that of averaged weights if there is one."""
    name = ours.pipeline_class.exported
    with tempfile.TemporaryDirectory() as temporary:
        splits = Splits(train, held_out, "given")
        trainer = Trainer(ours, Run.new(Path(temporary) / "run"), splits=splits, silent=True)
        model, average = ours.modules[name], trainer.state.ema

        def measure_both() -> dict[str, float]:
            model.eval()
            metrics = measure(model)
            model.train()
            if average is not None:
                metrics |= {f"averaged {key}": value for key, value in measure(average.modules[name]).items()}
            return metrics

        training = TimedTraining(lambda _: trainer.train_step(), measure_both, float(seconds))
        serve(training.next_slice, {**about, "precision": trainer.config.engine.precision}, ("quintet",))


# --- masked transformers ------------------------------------------------------------------------------------------


@dataclass
class CodeDataset:
    """A dataset of codes (items, ...) with texts."""

    codes: Tensor
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return str(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        return {"codes": self.codes[item], "texts": self.texts[item]}


def serve_maskgit(
    ours: Task[Any], data: loss_task.CodeTask, texts_shown: tuple[bool, ...], about: Mapping[str, Any], seconds: str
) -> None:
    """Serve slices of training of a `MaskGit` on codes with texts."""

    def measure(maskgit: MaskGit) -> dict[str, float]:
        def predict(tokens: Tensor, texts: Sequence[str], shown: bool) -> Tensor:
            logits: Tensor = maskgit(tokens, maskgit.texts(texts, torch.full((len(texts),), shown)))
            return logits

        return loss_task.masked_loss(predict, data, maskgit.mask_id, texts_shown)

    train, held_out = CodeDataset(data.train_codes, data.train_texts), CodeDataset(data.codes, data.texts)
    serve_training(ours, train, held_out, measure, {**about, "task": data.digest}, seconds)


def about_maskgit(maskgit: MaskGit) -> dict[str, Any]:
    """Parameters of the transformer and, apart, of a trained text encoder."""
    encoder, everything = maskgit.text_encoder, count_parameters(maskgit)
    if not isinstance(encoder, ByteTextEncoder | WordTextEncoder):
        # The peer's projection of embeddings also counts as part of its transformer.
        return {"parameters": {"transformer": everything}}
    text = count_parameters(encoder)
    name = "byte encoder" if isinstance(encoder, ByteTextEncoder) else "word encoder"
    return {"parameters": {"transformer": everything - text, name: text}}
