"""quintet's C-ViViT step as a worker: `cvivit_ours.py recipe|large|same PRECISION`.

`recipe` is a training step of quintet: one forward pass for both phases, a gradient penalty every fourth step; `large`
is the same with a discriminator of the size of the peer's. `same` follows the peer: a forward pass for each phase, the
penalty in every step, and a discriminator of the same size.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import video_task as task
from quintet import config, runs
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.families.cvivit.config import CViViTConfig
from quintet.training.engine import Engine
from quintet.training.state import TrainingState
from worker import count_parameters, serve

STARTED = 1_000_000
"""A step after the ramp of the discriminator."""
LARGE_DIM = 144
"""Dimension at which our discriminator has as many parameters as the peer's."""


def main(kind: str, precision: str) -> None:
    torch.set_num_threads(1)
    count = task.TOKENIZER_BATCH
    keys: dict[str, Any] = {
        **{f"model.{name}": value for name, value in task.TOKENIZER.items()},
        "model.head_dim": task.HEAD_DIM,
        "model.image_size": task.SIDE,
        "model.patch_size": task.PATCH,
        "model.temporal_patch_size": task.TUBE,
        "model.quantizer": "lfq",
        "model.codebook_size": task.CODES,
        "data.frames": task.FRAMES,
        "train.batch_size": count,
        "engine.precision": precision,
        "optim.name": "adam",
    }
    if kind != "recipe":
        keys["loss.discriminator_dim"] = LARGE_DIM
    if kind == "same":
        keys["loss.gradient_penalty_every"] = 1
    settings = config.build(CViViTConfig, overrides=keys)
    torch.manual_seed(0)
    ours = runs.make_task(settings, {})
    engine = Engine(settings.engine)
    engine.to_device(ours.modules)
    state = TrainingState(ours)
    clips = (task.videos(count) * 255).to(torch.uint8)
    fields = ours.collate([{"videos": clip} for clip in clips])
    number = STARTED

    def batch() -> Batch:
        return Batch(fields, tuple(map(str, range(count))), ItemRNG(0, [number] * count, range(count)))

    def joint_step() -> None:
        nonlocal number
        report = ours.backward([batch()], ours.modules, engine, number)
        for phase in state.phases:
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        ours.after_step(report.statistics, number)
        number += 1

    def separate_step() -> None:
        nonlocal number
        for phase in state.phases:
            with engine.autocast():
                output = ours.forward(ours.modules, batch(), STARTED)
                loss = phase.phase.loss(ours.modules, batch(), output, STARTED)
            loss.value.backward()  # type: ignore[no-untyped-call]
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        number += 1

    parameters = {name: count_parameters(module) for name, module in ours.modules.items()}
    serve(separate_step if kind == "same" else joint_step, {"parameters": parameters}, ("quintet",))


if __name__ == "__main__":
    main(*sys.argv[1:])
