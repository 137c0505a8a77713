"""quintet's masked transformer as a worker.

`muse_ours.py step|sample|sample-peer-settings PRECISION`: a training step of the recipe (masks, byte encoder, loss at
masked positions, AdamW); decoding with the settings of the recipe or of the peer.
`muse_ours.py loss TOKENIZER CODES SETTINGS SECONDS`: trains for slices of CPU seconds, and measures after each;
SETTINGS is a learning rate, for the peer's sizes, or a preset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import loss_task
import muse_task as task
import ours_training
from quintet import config
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.config.masked import MaskGitSampleConfig
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.task import MuseTask
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline
from quintet.sampling import masked
from quintet.sampling.maskgit import fill
from quintet.training.engine import Engine
from quintet.training.state import TrainingState
from worker import serve

SIZES: Mapping[str, Any] = {
    "model.dim": task.DIM,
    "model.depth": task.DEPTH,
    "model.heads": task.HEADS,
    "loss.cond_drop_prob": task.DROP_TEXT,
}


def tokenizer_of(grid: int) -> Pipeline[Any]:
    """An untrained tokenizer, which only defines the grid and the codebook; the codes are precomputed."""
    shape = {"model.image_size": grid * 2, "model.layers": 1, "model.dim": 8, "model.codebook_size": task.CODES}
    settings = config.build(VQGanConfig, overrides=shape)
    torch.manual_seed(settings.train.seed)
    return VQGanPipeline(settings, VQGanPipeline.build_modules(settings, {})).freeze()


def timed_task(precision: str) -> tuple[MuseTask, Engine]:
    keys = {
        **SIZES,
        "optim.betas": loss_task.BETAS,
        # The dimension of the peer's text context, for the same cost.
        "model.text_dim": task.DIM,
        "model.text_length": task.TEXT_SYMBOLS,
        "engine.precision": precision,
        "train.batch_size": task.STEP_BATCH,
        "ema.enabled": False,
    }
    torch.manual_seed(0)
    ours = MuseTask(config.build(MuseConfig, overrides=keys), {"tokenizer": tokenizer_of(task.GRID)})
    engine = Engine(ours.config.engine)
    engine.to_device(ours.modules)
    return ours, engine


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

    serve(step, ours_training.about_maskgit(ours.maskgit), ("quintet",))


# --- sampling ---------------------------------------------------------------------------------------------------


def sampling(peer_settings: bool) -> masked.Sampling:
    if peer_settings:
        # Defaults of the peer: the top 10 % of the codes, a temperature that decreases to 0, no noise.
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
    cond = maskgit.texts(task.texts(count))
    uncond = maskgit.texts(task.texts(count), torch.zeros(count, dtype=torch.bool))
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
                cond=cond,
                uncond=uncond,
            )
        number += 1

    serve(step, ours_training.about_maskgit(ours.maskgit), ("quintet",))


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(tokenizer: str, folder: str, settings: str, seconds: str) -> None:
    data = task.read_task(Path(folder))
    peer_sizes = {**SIZES, "model.text_length": task.LONGEST_TEXT}
    ours = ours_training.make_task(MuseConfig, settings, {"tokenizer": open_pipeline(tokenizer)}, peer_sizes)
    assert isinstance(ours, MuseTask)
    ours_training.serve_maskgit(ours, data, (True, False), ours_training.about_maskgit(ours.maskgit), seconds)


WORKS: Mapping[str, Callable[..., None]] = {
    "step": serve_step,
    "sample": lambda precision: serve_sampling(precision, peer_settings=False),
    "sample-peer-settings": lambda precision: serve_sampling(precision, peer_settings=True),
    "loss": serve_training,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
