"""quintet's VQ-GAN step as a worker: `vqgan_ours.py recipe|same PRECISION`.

`recipe` is a training step of quintet: one forward pass for both phases, a gradient penalty every fourth step.
`same` follows the peer: a forward pass for each phase, and the penalty in every step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from quintet import config, runs
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.families.vqgan.config import VQGanConfig
from quintet.training.engine import Engine
from quintet.training.state import TrainingState
from worker import count_parameters, serve

STARTED = 1_000_000
"""A step after the ramp of the discriminator."""


def main(kind: str, precision: str) -> None:
    torch.set_num_threads(1)
    keys: dict[str, Any] = {
        "model.image_size": 128,
        "model.dim": 32,
        "model.layers": 4,
        "model.quantizer": "lfq",
        "model.codebook_size": 1024,
        "train.batch_size": 4,
        "engine.precision": precision,
        "loss.gradient_penalty_every": 4 if kind == "recipe" else 1,
        "optim.name": "adam",
    }
    settings = config.build(VQGanConfig, overrides=keys)
    task = runs.make_task(settings, {})
    engine = Engine(settings.engine)
    engine.to_device(task.modules)
    state = TrainingState(task)
    images = torch.randint(0, 256, (4, 3, 128, 128), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = Batch({"images": images}, tuple("abcd"), ItemRNG(0, [0] * 4, range(4)))
    number = STARTED

    def joint_step() -> None:
        nonlocal number
        report = task.backward([batch], task.modules, engine, number)
        for phase in state.phases:
            phase.optimizer.step()
            phase.optimizer.zero_grad()
        task.after_step(report.statistics, number)
        number += 1

    def separate_step() -> None:
        for phase in state.phases:
            with engine.autocast():
                output = task.forward(task.modules, batch, STARTED)
                loss = phase.phase.loss(task.modules, batch, output, STARTED)
            loss.value.backward()  # type: ignore[no-untyped-call]
            phase.optimizer.step()
            phase.optimizer.zero_grad()

    parameters = {name: count_parameters(module) for name, module in task.modules.items()}
    serve(joint_step if kind == "recipe" else separate_step, {"parameters": parameters}, ("quintet",))


if __name__ == "__main__":
    main(*sys.argv[1:])
