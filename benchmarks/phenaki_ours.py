"""quintet's Phenaki as a worker: `phenaki_ours.py KIND PRECISION`, where a kind is one of `WORKS` but `loss`.

A training step of the recipe (masks, byte encoder, loss at masked positions, Adam); text to video with the settings of
the recipe or of the peer. With `-embeddings`: the settings of the peer, and text embeddings instead of a byte encoder.

`phenaki_ours.py loss TOKENIZER CODES SETTINGS SECONDS`: trains for slices of CPU seconds, and measures after each;
SETTINGS is a learning rate, for the peer's sizes, or a preset.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import ours_training
import video_task as task
from quintet import config
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.families.cvivit.config import CViViTConfig
from quintet.families.cvivit.pipeline import CViViTPipeline
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.model import Phenaki
from quintet.families.phenaki.pipeline import PhenakiPipeline
from quintet.families.phenaki.task import PhenakiTask
from quintet.pipelines.loading import open_pipeline
from quintet.sampling import masked
from quintet.training.engine import Engine
from quintet.training.state import TrainingState
from worker import serve

SIZES: Mapping[str, Any] = {"model.dim": task.DIM, "model.depth": task.DEPTH, "model.heads": task.HEADS}


def tokenizer() -> CViViTPipeline:
    """An untrained tokenizer; only its cost matters."""
    keys = {
        **{f"model.{name}": value for name, value in task.TOKENIZER.items()},
        "model.head_dim": task.HEAD_DIM,
        "model.image_size": task.SIDE,
        "model.patch_size": task.PATCH,
        "model.temporal_patch_size": task.TUBE,
        "model.codebook_size": task.CODES,
        "model.quantizer": "lfq",
        "data.frames": task.FRAMES,
    }
    settings = config.build(CViViTConfig, overrides=keys)
    torch.manual_seed(settings.train.seed)
    return CViViTPipeline(settings, CViViTPipeline.build_modules(settings, {})).freeze()


def make_task(precision: str, embeddings: bool) -> tuple[PhenakiTask, Engine]:
    keys: dict[str, Any] = {
        **SIZES,
        # The dimension of the peer's text context, for the same cost.
        "model.text_dim": task.DIM,
        "model.text_length": task.TEXT_SYMBOLS,
        "data.frames": task.FRAMES,
        "optim.name": "adam",
        "optim.betas": task.BETAS,
        "engine.precision": precision,
        "train.batch_size": task.STEP_BATCH,
        "ema.enabled": False,
    }
    if embeddings:
        keys.update({"model.text": "vectors", "model.vector_dim": task.TEXT_DIM})
    torch.manual_seed(0)
    ours = PhenakiTask(config.build(PhenakiConfig, overrides=keys), {"tokenizer": tokenizer()})
    engine = Engine(ours.config.engine)
    engine.to_device(ours.modules)
    return ours, engine


def serve_step(precision: str, embeddings: bool) -> None:
    ours, engine = make_task(precision, embeddings)
    state = TrainingState(ours)
    count = task.STEP_BATCH
    field, values = ("vectors", task.embeddings(count)) if embeddings else ("texts", task.texts(count))
    fields = ours.collate(
        [{"codes": codes, field: value} for codes, value in zip(task.codes(count), values, strict=True)]
    )
    number = 0

    def step() -> None:
        nonlocal number
        batch = Batch(fields, tuple(map(str, range(count))), ItemRNG(0, [number] * count, range(count)))
        ours.backward([batch], ours.modules, engine, number)
        for phase in state.phases:
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        number += 1

    serve(step, ours_training.about_maskgit(ours.maskgit), ("quintet",))


def serve_sampling(precision: str, peer_settings: bool, embeddings: bool = False) -> None:
    ours, engine = make_task(precision, embeddings)
    pipeline: PhenakiPipeline = ours.pipeline(ours.modules)
    settings = pipeline.sampling()
    if peer_settings:
        # Defaults of the peer: all codes, a temperature that decreases to 0, no noise.
        settings = masked.Sampling(
            steps=task.SAMPLE_STEPS,
            temperature=task.TEMPERATURE,
            temperature_schedule=masked.linear,
            guidance_scale=task.GUIDANCE,
            choice_temperature=0.0,
        )
    assert settings.steps == task.SAMPLE_STEPS
    inputs: dict[str, Any] = {"texts": task.texts(task.SAMPLE_BATCH)}
    if embeddings:
        inputs = {"text_embeds": task.embeddings(task.SAMPLE_BATCH)}
    phenaki = Phenaki(ours.maskgit.eval(), pipeline.tokenizer.model, settings=settings)
    number = 0

    def step() -> None:
        nonlocal number
        with engine.autocast():
            videos = phenaki.sample(num_frames=task.FRAMES, seed=number, **inputs)
        assert videos.shape == (task.SAMPLE_BATCH, 3, task.FRAMES, task.SIDE, task.SIDE)
        number += 1

    serve(step, ours_training.about_maskgit(ours.maskgit), ("quintet",))


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(tokenizer: str, folder: str, settings: str, seconds: str) -> None:
    data = task.read_task(Path(folder))
    frozen = {"tokenizer": open_pipeline(tokenizer)}
    peer_sizes = {**SIZES, "model.text_length": task.LONGEST_TEXT}
    # The masks of the measurement cover all latent frames, and a frame-autoregressive model never sees later ones.
    all_at_once = {"loss.frame_autoregressive": False}
    ours = ours_training.make_task(PhenakiConfig, settings, frozen, peer_sizes, all_at_once)
    assert isinstance(ours, PhenakiTask)
    ours_training.serve_maskgit(ours, data, (True,), ours_training.about_maskgit(ours.maskgit), seconds)


WORKS: Mapping[str, Callable[..., None]] = {
    "step": lambda precision: serve_step(precision, embeddings=False),
    "step-embeddings": lambda precision: serve_step(precision, embeddings=True),
    "sample": lambda precision: serve_sampling(precision, peer_settings=False),
    "sample-peer-settings": lambda precision: serve_sampling(precision, peer_settings=True),
    "sample-embeddings": lambda precision: serve_sampling(precision, peer_settings=True, embeddings=True),
    "loss": serve_training,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
