"""Every recipe: what one step may change, and what it may not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from contract.cases import Case
from contract.worlds import make_recipe
from helpers import log_text, metrics, state, steps_saved, tensor_hashes
from quintet.core.batch import Item, Source
from quintet.core.draw import Draw
from quintet.core.order import Order
from quintet.core.recipe import Recipe
from quintet.core.run import Run
from quintet.core.trainer import Trainer
from quintet.errors import RunError


def fingerprint(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Every parameter and buffer of the modules, hashed."""
    return {
        f"{name}.{key}": hashlib.sha256(value.detach().contiguous().view(-1).numpy().tobytes()).hexdigest()
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def test_the_backward_pass_changes_nothing_but_gradients(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    for name, words in case.worlds.items():
        made = make_recipe(recipe, data, (*case.tiny, *words))
        trainer = Trainer(made, Run.new(tmp_path / name), silent=True)
        # A late and round one: every phase is active, and whatever is done now and then is done.
        step = 1200
        loader = trainer._loader(trainer.sources.train)
        batches = [trainer._moved(loaded) for loaded in loader.opening(trainer._order(), made.config.train.accumulate)]
        before = fingerprint(made.modules)

        report = made.backward(batches, trainer.nets, trainer.engine, step)

        assert fingerprint(made.modules) == before, name
        assert all(value.isfinite() for value in report.metrics.values())
        for phase in made.phases:
            assert f"{phase.name}/loss" in report.metrics
        assert all(part.training for module in made.modules.values() for part in module.modules())
        trainer.close()


def test_modules_are_in_training_mode_after_every_step(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    made = make_recipe(recipe, data, case.tiny)
    trainer = Trainer(made, Run.new(tmp_path / "run"), silent=True)

    def check(logs: dict[str, Any]) -> None:
        # Validation, samples and a checkpoint lie behind some of these steps.
        assert all(part.training for module in made.modules.values() for part in module.modules()), logs["step"]
        assert not any(module.training for module in trainer.state.average.modules.values())
        assert all(parameter.grad is None for module in made.modules.values() for parameter in module.parameters())
        assert all(parameter.requires_grad for module in made.modules.values() for parameter in module.parameters())

    trainer.train(log_fn=check)
    trainer.close()
    assert trainer.step == 12


# --- non-finite steps ---------------------------------------------------------------------------------------------


@dataclass
class Poisoned:
    """A source of which some items hold a non-finite number."""

    source: Source
    case: Case
    items: set[int]

    def __len__(self) -> int:
        return len(self.source)

    def name(self, item: int) -> str:
        return self.source.name(item)

    def load(self, item: int, draw: Draw) -> Item:
        loaded = self.source.load(item, draw)
        return self.case.poison(loaded) if item in self.items else loaded


def poisoned_trainer(made: Recipe[Any], case: Case, out: Path, whole: bool) -> tuple[Trainer, str]:
    """The second batch holds one poisoned item, whose name is returned; or it and all that follow hold nothing else."""
    sources = made.sources()
    train = made.config.train
    order = Order(len(sources.train), train.batch_size, train.seed, made.lengths(sources.train))
    first, second = ([item for _, item in order.batch(step)] for step in (0, 1))
    poisoned = {*range(len(sources.train))} - {*first} if whole else {second[0]}
    spoilt = replace(sources, train=Poisoned(sources.train, case, poisoned))
    return Trainer(made, Run.new(out), sources=spoilt, silent=True), sources.train.name(second[0])


def test_a_non_finite_step_leaves_every_bit_as_it_was(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = make_recipe(recipe, data, (*case.tiny, "train.steps=2", "checkpoint.every=1"))
    trainer, name = poisoned_trainer(made, case, run, whole=False)
    trainer.train()
    trainer.close()

    assert state(run)["status"] == "finished"
    assert (trainer.state.progress.bad_steps, trainer.state.progress.bad_steps_in_a_row) == (1, 1)
    assert tensor_hashes(run, 2) == tensor_hashes(run, 1)
    assert f"step 2: non-finite loss or gradient, step skipped; items: {name}\n" in log_text(run)
    assert {"step": 2, "train/bad_steps": 1, "items": [name]} in metrics(run)


def test_too_many_non_finite_steps_end_the_run_with_its_weights_safe(
    recipe: str, case: Case, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    made = make_recipe(recipe, data, (*case.tiny, "train.max_bad_steps=3", "checkpoint.every=1"))
    trainer, _ = poisoned_trainer(made, case, run, whole=True)
    with pytest.raises(RunError, match="3 non-finite steps in a row"):
        trainer.train()
    trainer.close()

    assert state(run)["status"] == "failed"
    # None in between: the newest checkpoint before bad steps is what a roll-back needs.
    assert steps_saved(run) == [1, 4]
    assert tensor_hashes(run, 4) == tensor_hashes(run, 1)
    assert all(value.isfinite().all() for module in made.modules.values() for value in module.state_dict().values())
