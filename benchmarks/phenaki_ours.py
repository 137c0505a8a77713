"""quintet's Phenaki as a worker: `phenaki_ours.py KIND PRECISION`, where a kind is one of `WORKS`.

A training step of the recipe (masks, byte encoder, loss at masked places, Adam); text to video with the recipe's own
settings, or with the peer's. With `-embeddings` the peer's settings, and text embeddings instead of a byte encoder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

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
from quintet.nn.text import ByteTextEncoder
from quintet.sampling import masked
from quintet.training.engine import Engine
from quintet.training.state import TrainingState
from worker import count_parameters, serve


def tokenizer() -> CViViTPipeline:
    """Untrained: only what it costs is of interest."""
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
        "model.dim": task.DIM,
        "model.depth": task.DEPTH,
        "model.heads": task.HEADS,
        # As wide as the context that the peer's attention sees, so that ours does no less for the text.
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
        keys.update({"model.text": "vectors", "model.vector_dim": task.TEXT_WIDTH})
    torch.manual_seed(0)
    ours = PhenakiTask(config.build(PhenakiConfig, overrides=keys), {"tokenizer": tokenizer()})
    engine = Engine(ours.config.engine)
    engine.to_device(ours.modules)
    return ours, engine


def about(ours: PhenakiTask) -> dict[str, Any]:
    encoder, everything = ours.maskgit.text_encoder, count_parameters(ours.maskgit)
    if not isinstance(encoder, ByteTextEncoder):
        # The peer's layer for embeddings is part of its transformer as well.
        return {"parameters": {"transformer": everything}}
    text = count_parameters(encoder)
    return {"parameters": {"transformer": everything - text, "byte encoder": text}}


def serve_step(precision: str, embeddings: bool) -> None:
    ours, engine = make_task(precision, embeddings)
    state = TrainingState(ours)
    count = task.STEP_BATCH
    told = ("vectors", task.embeddings(count)) if embeddings else ("texts", task.texts(count))
    fields = ours.collate(
        [{"codes": codes, told[0]: own} for codes, own in zip(task.codes(count), told[1], strict=True)]
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

    serve(step, about(ours), ("quintet",))


def serve_sampling(precision: str, peer_settings: bool, embeddings: bool = False) -> None:
    ours, engine = make_task(precision, embeddings)
    pipeline: PhenakiPipeline = ours.pipeline(ours.modules)
    settings = pipeline.sampling()
    if peer_settings:
        # What the peer does by default: all codes, a temperature that falls to nothing, no noise.
        settings = masked.Sampling(
            steps=task.SAMPLE_STEPS,
            temperature=task.TEMPERATURE,
            temperature_schedule=masked.linear,
            guidance_scale=task.GUIDANCE,
            choice_temperature=0.0,
        )
    assert settings.steps == task.SAMPLE_STEPS
    told: dict[str, Any] = {"texts": task.texts(task.SAMPLE_BATCH)}
    if embeddings:
        told = {"text_embeds": task.embeddings(task.SAMPLE_BATCH)}
    phenaki = Phenaki(ours.maskgit.eval(), pipeline.tokenizer.model, settings=settings)
    number = 0

    def step() -> None:
        nonlocal number
        with engine.autocast():
            videos = phenaki.sample(num_frames=task.FRAMES, seed=number, **told)
        assert videos.shape == (task.SAMPLE_BATCH, 3, task.FRAMES, task.SIDE, task.SIDE)
        number += 1

    serve(step, about(ours), ("quintet",))


WORKS: Mapping[str, Callable[[str], None]] = {
    "step": lambda precision: serve_step(precision, embeddings=False),
    "step-embeddings": lambda precision: serve_step(precision, embeddings=True),
    "sample": lambda precision: serve_sampling(precision, peer_settings=False),
    "sample-peer-settings": lambda precision: serve_sampling(precision, peer_settings=True),
    "sample-embeddings": lambda precision: serve_sampling(precision, peer_settings=True, embeddings=True),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
