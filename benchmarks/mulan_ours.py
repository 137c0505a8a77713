"""quintet's MuLaN as a worker.

`mulan_ours.py step PRECISION`: a training step of the recipe (spectrogram, masks, both encoders, loss, clipping,
AdamW). `mulan_ours.py loss SYMBOLS CLIPS SETTINGS SECONDS`: trains for slices of CPU seconds, and measures after each;
SYMBOLS is words, with the peer's vocabulary, or bytes; SETTINGS is a learning rate, for the peer's sizes, or a preset,
which reads bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import loss_task
import mulan_task as task
import ours_training
from quintet import config
from quintet.common.batch import Batch, Item
from quintet.common.rng import ItemRNG
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.model import MuLaN
from quintet.families.mulan.task import MuLaNTask
from quintet.families.mulan.towers import AudioSpectrogramTransformer, Prepared
from quintet.training.engine import Engine
from quintet.training.optim import clip_gradients, gradient_norm, set_learning_rate
from quintet.training.state import TrainingState
from worker import TimedTraining, count_parameters, serve

TOWER = {"dim": task.DIM, "depth": task.DEPTH, "heads": task.HEADS, "head_dim": task.HEAD_DIM}
HOP = 168
"""With 160, a clip of 2 s would have 13 columns of patches; the peer crops its spectrogram to 12."""
LONGEST_TEXT = 96
LEVEL_BATCHES = 16
"""Number of batches for the normalization statistics."""


def make_task(keys: Mapping[str, Any]) -> MuLaNTask:
    audio = {
        **TOWER,
        "sample_rate": task.RATE,
        "hop_length": HOP,
        "n_mels": task.ROWS * task.PATCH,
        "patch_size": task.PATCH,
        "max_seconds": task.SAMPLES / task.RATE,
        "patch_dropout": task.PATCH_DROPOUT,
        "frequency_mask": task.BAND_MASK,
        "time_mask": task.TIME_MASK,
    }
    own: dict[str, Any] = {
        **{f"model.audio.{name}": value for name, value in audio.items()},
        **{f"model.text.{name}": value for name, value in TOWER.items()},
        "model.text.max_length": LONGEST_TEXT,
        "model.latent_dim": task.LATENT_DIM,
        "model.temperature": 1 / task.SCALE,
        "model.contrastive_loss": "decoupled",
        "optim.betas": task.BETAS,
        "optim.max_grad_norm": task.CLIP,
    }
    torch.manual_seed(0)
    return MuLaNTask(config.build(MuLaNConfig, overrides={**own, **keys}))


def about(model: MuLaN) -> dict[str, Any]:
    assert isinstance(model.audio, AudioSpectrogramTransformer)
    towers = (model.audio.transformer, model.text.transformer)
    positions = sum(count_parameters(tower.positions) for tower in towers if tower.positions is not None)
    trunk = sum(map(count_parameters, towers)) - positions
    embedding = count_parameters(model.text.embedding)
    others = count_parameters(model) - trunk - embedding
    parameters = {"trunk": trunk, "token embedding": embedding, "positions, patches, projections": others}
    rows, columns = model.audio.config.grid
    return {"parameters": parameters, "patches": rows * columns}


class Training:
    """Training steps of a task."""

    def __init__(self, ours: MuLaNTask) -> None:
        self.ours = ours
        self.engine = Engine(ours.config.engine)
        self.engine.to_device(ours.modules)
        (self.phase,) = TrainingState(ours).phases
        self.number = 0

    def step(self, batch: Batch, rate: float) -> None:
        report = self.ours.backward([batch], self.ours.modules, self.engine, self.number)
        clip_gradients(self.phase.parameters, gradient_norm(self.phase.parameters), task.CLIP)
        set_learning_rate(self.phase.optimizer, rate)
        self.phase.optimizer.step()
        self.phase.optimizer.zero_grad()
        self.ours.after_step(report.statistics, self.number)
        self.number += 1


def make_batch(
    waves: Tensor, lengths: Tensor, captions: Mapping[str, Sequence[Any]], items: Sequence[int], number: int
) -> Batch:
    fields = {"wavs": waves, "lengths": lengths, **captions, "owners": torch.arange(len(items))}
    return Batch(fields, tuple(map(str, items)), ItemRNG(0, [number] * len(items), items))


# --- a step -------------------------------------------------------------------------------------------------------


def serve_step(precision: str) -> None:
    ours = make_task({"engine.precision": precision, "train.batch_size": task.STEP_BATCH})
    training = Training(ours)
    count = task.STEP_BATCH
    waves, texts = task.windows(count), task.texts(count)
    lengths = torch.full((count,), task.SAMPLES)

    def step() -> None:
        training.step(make_batch(waves, lengths, {"texts": texts}, range(count), training.number), task.STEP_RATE)

    serve(step, about(ours.mulan), ("quintet",))


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(symbols: str, folder: str, settings: str, seconds: str) -> None:
    data = task.read_task(Path(folder))
    if settings in MuLaNConfig.PRESETS:
        serve_preset(data, settings, seconds)
    else:
        serve_peer_sizes(data, symbols, settings, seconds)


@dataclass
class WindowDataset:
    """Windows of clips, each with its caption: anywhere in a training clip, at the start of a held-out one."""

    clips: task.Clips
    train: bool

    def __len__(self) -> int:
        return len(self.clips.texts)

    def name(self, item: int) -> str:
        return str(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        room = max(int(self.clips.lengths[item]) - task.SAMPLES, 0) + 1
        start = int(rng.number("crop") * room) if self.train else 0
        waves, lengths = self.clips.at([item], [start])
        return {"wavs": waves, "lengths": lengths, "texts": self.clips.texts[item]}


def serve_preset(data: task.Task, preset: str, seconds: str) -> None:
    same_windows = {"data.seconds": task.SAMPLES / task.RATE}
    ours = ours_training.make_task(MuLaNConfig, preset, {}, {}, same_windows)
    assert isinstance(ours, MuLaNTask)

    def measure(mulan: MuLaN) -> dict[str, float]:
        return measured(mulan, data, mulan.text.prepare)

    train, held_out = WindowDataset(data.train, train=True), WindowDataset(data.held_out, train=False)
    facts = {**about(ours.mulan), "task": data.digest}
    ours_training.serve_training(ours, train, held_out, measure, facts, seconds)


def measured(mulan: MuLaN, data: task.Task, prepare_texts: Callable[[Sequence[str]], Prepared]) -> dict[str, float]:
    def embed(waves: Tensor, lengths: Tensor, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return mulan.embed_audio(waves, lengths), mulan.embed_prepared(prepare_texts(texts))

    return task.measured(embed, data.held_out, mulan.log_scale[-1].exp().item())


def serve_peer_sizes(data: task.Task, symbols: str, rate: str, seconds: str) -> None:
    words = task.Words(data.train.texts)
    # Both sides train on complete captions.
    keys: dict[str, Any] = {"train.batch_size": task.TRAIN_BATCH, "data.word_dropout": 0}
    ours = make_task({**keys, "model.text.vocab_size": len(words)} if symbols == "words" else keys)
    training, mulan = Training(ours), ours.mulan

    def make_train_batch(chosen: tuple[list[int], list[int]], number: int) -> Batch:
        items, starts = chosen
        texts = [data.train.texts[item] for item in items]
        captions = {"token_ids": words(texts)} if symbols == "words" else {"texts": texts}
        return make_batch(*data.train.at(items, starts), captions, items, number)

    batches = data.batches()
    level = [make_train_batch(next(batches), 0) for _ in range(LEVEL_BATCHES)]
    ours.init_from_data(ours.modules, level, training.engine)
    batches = data.batches()

    def prepare() -> Batch:
        return make_train_batch(next(batches), training.number)

    def step(batch: Batch) -> None:
        training.step(batch, loss_task.warmed_up(float(rate), training.number, task.WARMUP_STEPS))

    def prepare_texts(texts: Sequence[str]) -> Prepared:
        return mulan.text.prepare_ids(words(texts)) if symbols == "words" else mulan.text.prepare(texts)

    def measure() -> dict[str, float]:
        mulan.eval()
        metrics = measured(mulan, data, prepare_texts)
        mulan.train()
        return metrics

    timed = TimedTraining(step, measure, float(seconds), prepare)
    serve(timed.next_slice, {**about(mulan), "task": data.digest}, ("quintet",))


WORKS: Mapping[str, Callable[..., None]] = {"step": serve_step, "loss": serve_training}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
