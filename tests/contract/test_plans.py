"""Every recipe can be planned before there is data or a tokenizer, and its plan is what a step does."""

from __future__ import annotations

import json

import pytest
import torch

from contract.base_plans import FILE, base_plan, figures
from quintet import config as configs
from quintet import registry
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.config import RunConfig
from quintet.runs import make_task
from quintet.training.engine import Engine
from quintet.training.planning.building import planned_task, untrained_pipeline
from quintet.training.planning.step import NUM_ITEMS, ORDINARY_STEP, SimulatedTraining
from quintet.training.throughput import FlopCounter

TOLERANCE = 0.05
"""Of the pinned figures: other versions of torch may keep other tensors."""
SAMPLES = 4


def settings_of(recipe: str) -> RunConfig:
    changes = {"engine.device": "cpu", "engine.precision": "fp32"}
    built: RunConfig = configs.build(registry.find(recipe).config_class(), preset="debug", overrides=changes)
    return built


def counted_flops(settings: RunConfig) -> int:
    """The FLOPs of a real step of an example batch."""
    frozen = {
        key: untrained_pipeline(name, "debug", "cpu") for key, name in registry.find(settings.recipe).frozen.items()
    }
    task, engine = make_task(settings, frozen), Engine(settings.engine)
    rng = ItemRNG(0, [0] * SAMPLES, [number % NUM_ITEMS for number in range(SAMPLES)])
    batch = Batch(task.collate([task.example_item()] * SAMPLES), tuple(map(str, range(SAMPLES))), rng)
    with FlopCounter() as counter:
        task.backward([batch], task.modules, engine, ORDINARY_STEP)
    return counter.flops


@pytest.mark.parametrize("recipe", registry.RECIPES)
def test_the_planned_flops_are_those_of_a_real_step(recipe: str) -> None:
    settings = settings_of(recipe)
    planned = SimulatedTraining(planned_task(settings, "debug"), "cpu", "fp32").measure(SAMPLES)
    assert sum(planned.flops.values()) == pytest.approx(counted_flops(settings), rel=0.01)
    assert planned.flops.keys() == {torch.float32}


@pytest.mark.parametrize("recipe", registry.RECIPES)
def test_what_the_preset_base_needs_is_pinned(recipe: str) -> None:
    """If a change is meant to change it, write the file again: `python -m contract.base_plans`, in tests/."""
    assert figures(recipe) == pytest.approx(json.loads(FILE.read_text(encoding="utf-8"))[recipe], rel=TOLERANCE)


@pytest.mark.parametrize("recipe", registry.RECIPES)
@pytest.mark.parametrize("device", ["4090", "a100-80gb", "h100"])
def test_the_preset_base_trains_on_one_card(recipe: str, device: str) -> None:
    plan = base_plan(recipe, device)
    assert plan.grad_accum_steps is not None, plan.too_large()
    assert plan.largest_micro_batch >= 4
