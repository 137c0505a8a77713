"""quintet's masked transformer as a worker.

`muse_ours.py step|sample|sample-peer-settings PRECISION`: a training step of the recipe (masks, byte encoder, loss at
masked positions, AdamW); decoding with the recipe's own settings, or with the peer's.
`muse_ours.py loss TOKENIZER CODES RATE SECONDS`: trains by quintet's own loop for slices of CPU seconds, and measures
after each.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import muse_task as task
from quintet import config
from quintet.common.batch import Batch, Item
from quintet.common.rng import ItemRNG
from quintet.config.masked import MaskGitSampleConfig
from quintet.data.splits import Splits
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.task import MuseTask
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.nn.maskgit import MaskGit
from quintet.nn.text import ByteTextEncoder
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline
from quintet.sampling import masked
from quintet.sampling.maskgit import fill
from quintet.training.engine import Engine
from quintet.training.run_folder import Run
from quintet.training.state import TrainingState
from quintet.training.trainer import Trainer
from worker import TimedTraining, count_parameters, serve


def tokenizer_of(grid: int) -> Pipeline[Any]:
    """A tokenizer that only says how many codes there are, and where: codes are given."""
    shape = {"model.image_size": grid * 2, "model.layers": 1, "model.dim": 8, "model.codebook_size": task.CODES}
    settings = config.build(VQGanConfig, overrides=shape)
    torch.manual_seed(settings.train.seed)
    return VQGanPipeline(settings, VQGanPipeline.build_modules(settings, {})).freeze()


def make_task(tokenizer: Pipeline[Any], keys: Mapping[str, Any]) -> MuseTask:
    own: dict[str, Any] = {
        "model.dim": task.DIM,
        "model.depth": task.DEPTH,
        "model.heads": task.HEADS,
        "loss.cond_drop_prob": task.DROP_TEXT,
        "optim.betas": task.BETAS,
    }
    torch.manual_seed(0)
    return MuseTask(config.build(MuseConfig, overrides={**own, **keys}), {"tokenizer": tokenizer})


def timed_task(precision: str) -> tuple[MuseTask, Engine]:
    keys = {
        # As wide as the context that the peer's attention sees, so that ours does no less for the text.
        "model.text_dim": task.DIM,
        "model.text_length": task.TEXT_SYMBOLS,
        "engine.precision": precision,
        "train.batch_size": task.STEP_BATCH,
        "ema.enabled": False,
    }
    ours = make_task(tokenizer_of(task.GRID), keys)
    engine = Engine(ours.config.engine)
    engine.to_device(ours.modules)
    return ours, engine


def about(ours: MuseTask) -> dict[str, Any]:
    encoder = ours.maskgit.text_encoder
    assert isinstance(encoder, ByteTextEncoder)
    text = count_parameters(encoder)
    return {"parameters": {"transformer": count_parameters(ours.maskgit) - text, "byte encoder": text}}


# --- a step -----------------------------------------------------------------------------------------------------


def serve_step(precision: str) -> None:
    ours, engine = timed_task(precision)
    state = TrainingState(ours)
    count = task.STEP_BATCH
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, task.CODES, (count, task.GRID, task.GRID), generator=generator)
    number = 0

    def step() -> None:
        nonlocal number
        rng = ItemRNG(0, [number] * count, range(count))
        batch = Batch({"codes": codes, "texts": task.texts(count)}, tuple(map(str, range(count))), rng)
        ours.backward([batch], ours.modules, engine, number)
        for phase in state.phases:
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        number += 1

    serve(step, about(ours), ("quintet",))


# --- sampling ---------------------------------------------------------------------------------------------------


def sampling(peer_settings: bool) -> masked.Sampling:
    if peer_settings:
        # What the peer does by default: a tenth of the codes, a temperature that falls to nothing, no noise.
        return masked.Sampling(
            steps=task.SAMPLE_STEPS,
            temperature_schedule=masked.linear,
            top_k=0.1,
            guidance_scale=task.GUIDANCE,
            choice_temperature=0.0,
        )
    own = MaskGitSampleConfig()
    return masked.Sampling(
        steps=task.SAMPLE_STEPS,
        temperature=own.temperature,
        temperature_schedule=masked.TEMPERATURE_SCHEDULES[own.temperature_schedule],
        top_k=own.top_k,
        top_p=own.top_p,
        guidance_scale=task.GUIDANCE,
        guidance_schedule=masked.GUIDANCE_SCHEDULES[own.guidance_schedule],
        choice_temperature=own.choice_temperature,
    )


def serve_sampling(precision: str, peer_settings: bool) -> None:
    ours, engine = timed_task(precision)
    maskgit, settings, count = ours.maskgit.eval(), sampling(peer_settings), task.SAMPLE_BATCH
    shown = maskgit.texts(task.texts(count))
    hidden = maskgit.texts(task.texts(count), torch.zeros(count, dtype=torch.bool))
    empty = torch.full((count, maskgit.length), maskgit.mask_id)
    number = 0

    def step() -> None:
        nonlocal number
        with engine.autocast():
            fill(
                maskgit,
                empty,
                torch.ones_like(empty, dtype=torch.bool),
                rng=ItemRNG(number, [0] * count, range(count)),
                settings=settings,
                cond=shown,
                uncond=hidden,
            )
        number += 1

    serve(step, about(ours), ("quintet",))


# --- training for a time ----------------------------------------------------------------------------------------


@dataclass
class Given:
    """Codes with their texts as a source of items."""

    codes: Tensor
    texts: Sequence[str]
    grid: int

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return str(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        return {"codes": self.codes[item].view(self.grid, self.grid), "texts": self.texts[item]}


def serve_training(tokenizer: str, folder: str, rate: str, seconds: str) -> None:
    given = task.read_task(Path(folder))
    keys = {
        "model.text_length": task.LONGEST_TEXT,
        "train.steps": 1_000_000,
        "train.batch_size": task.TRAIN_BATCH,
        "optim.lr": float(rate),
        "optim.warmup_steps": task.WARMUP_STEPS,
        "optim.schedule": "constant",
        "data.num_workers": 0,
        "log.trackers": [],
    }
    ours = make_task(open_pipeline(tokenizer), keys)
    splits = Splits(
        Given(given.train_codes, given.train_texts, given.grid), Given(given.codes, given.texts, given.grid), "given"
    )
    with tempfile.TemporaryDirectory() as place:
        trainer = Trainer(ours, Run.new(Path(place) / "run"), splits=splits, silent=True)
        average = trainer.state.ema
        assert average is not None
        averaged = average.modules["maskgit"]
        assert isinstance(averaged, MaskGit)

        def measure() -> dict[str, float]:
            return {
                **measured(ours.maskgit, given, (True, False)),
                **{f"averaged {name}": value for name, value in measured(averaged, given, (True,)).items()},
            }

        training = TimedTraining(lambda _: trainer.train_step(), measure, float(seconds))
        serve(training.next_slice, {**about(ours), "task": given.digest}, ("quintet",))


def measured(maskgit: MaskGit, given: task.Task, texts_shown: tuple[bool, ...]) -> dict[str, float]:
    def predict(tokens: Tensor, texts: Sequence[str], shown: bool) -> Tensor:
        logits: Tensor = maskgit(tokens, maskgit.texts(texts, torch.full((len(texts),), shown)))
        return logits

    return task.masked_loss(predict, given, maskgit.mask_id, texts_shown)


WORKS: Mapping[str, Callable[..., None]] = {
    "step": serve_step,
    "sample": lambda precision: serve_sampling(precision, peer_settings=False),
    "sample-peer-settings": lambda precision: serve_sampling(precision, peer_settings=True),
    "loss": serve_training,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
