"""`loss.logit_chunk` in the recipes that have it: the same losses and gradients as with all logits at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers import error_line, quintet
from quintet import config as configs
from quintet import registry
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.runs import make_task
from quintet.training.engine import Engine
from quintet.training.planning.building import untrained_pipeline
from quintet.training.task import Report, Task

SAMPLES = 8
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "muse": ("muse", {"model.self_conditioning": True}),
    "muse with soft targets": ("muse", {"loss.codebook_smoothing": 1.0}),
    "phenaki, a frame at a time": ("phenaki", {"loss.frame_autoregressive": True}),
    "mesh-transformer": ("mesh-transformer", {"model.max_faces": 32, "loss.label_smoothing": 0.1}),
}


def gradients(recipe: str, keys: dict[str, Any]) -> tuple[Report, Task[Any]]:
    changes = {"engine.device": "cpu", "engine.precision": "fp64", **keys}
    settings: Any = configs.build(registry.find(recipe).config_class(), preset="debug", overrides=changes)
    torch.manual_seed(0)
    frozen = {key: untrained_pipeline(name, "debug", "cpu") for key, name in registry.find(recipe).frozen.items()}
    task, engine = make_task(settings, frozen), Engine(settings.engine)
    engine.to_device(task.modules)
    items = [task.example_item()] * SAMPLES
    batch = Batch(task.collate(items), tuple(map(str, range(SAMPLES))), ItemRNG(0, [0] * SAMPLES, range(SAMPLES)))
    return task.backward([batch.to(engine.device, engine.dtype)], task.modules, engine, 1), task


@pytest.mark.parametrize("name", CASES)
def test_chunks_change_nothing_but_memory(name: str) -> None:
    recipe, keys = CASES[name]
    whole, expected = gradients(recipe, keys)
    chunked, ours = gradients(recipe, {**keys, "loss.logit_chunk": 64})
    assert chunked.metrics.keys() == whole.metrics.keys()
    for metric, value in whole.metrics.items():
        torch.testing.assert_close(chunked.metrics[metric], value, rtol=1e-10, atol=1e-10)
    for module, other in zip(ours.modules.values(), expected.modules.values(), strict=True):
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9)


def test_a_critic_which_samples_from_the_logits_needs_all_of_them() -> None:
    gradients("muse", {"loss.critic": True, "loss.logit_chunk": "auto"})
    outcome = quintet("plan", "muse", "--preset", "debug", "loss.critic=true", "loss.logit_chunk=64")
    assert outcome.code == 2
    assert "loss.logit_chunk=64 and a critic" in error_line(outcome.errors)


@pytest.mark.parametrize("value", ["0", "100", "many"])
def test_a_wrong_chunk_is_refused(value: str) -> None:
    outcome = quintet("plan", "mesh-transformer", "--preset", "debug", f"loss.logit_chunk={value}")
    assert outcome.code == 2
    assert "loss.logit_chunk" in error_line(outcome.errors)
