"""Every recipe: what one step may change, and what it may not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from contract.cases import Case
from contract.worlds import make_task
from quintet.training.run_folder import Run
from quintet.training.throughput import FlopCounter
from quintet.training.trainer import Trainer


def fingerprint(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Every parameter and buffer of the modules, hashed."""
    return {
        f"{name}.{key}": hashlib.sha256(value.detach().contiguous().view(-1).numpy().tobytes()).hexdigest()
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def test_the_backward_pass_changes_nothing_but_gradients(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    for name, words in case.worlds.items():
        made = make_task(recipe, data, (*case.tiny, *words))
        trainer = Trainer(made, Run.new(tmp_path / name), silent=True)
        # A late and round one: every phase is active, and whatever is done now and then is done.
        step = 1200
        loader = trainer._loader(trainer.splits.train)
        batches = [
            trainer._to_device(loaded)
            for loaded in loader.init_batches(trainer._order(), made.config.train.grad_accum_steps)
        ]
        before = fingerprint(made.modules)

        report = made.backward(batches, trainer.modules, trainer.engine, step)

        assert fingerprint(made.modules) == before, name
        assert all(value.isfinite() for value in report.metrics.values())
        for phase in made.phases:
            assert f"{phase.name}/loss" in report.metrics
        assert all(part.training for module in made.modules.values() for part in module.modules())
        trainer.close()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_counting_flops_changes_no_byte(recipe: str, case: Case, data: Path, tmp_path: Path, precision: str) -> None:
    made = make_task(recipe, data, (*case.tiny, f"engine.precision={precision}"))
    trainer = Trainer(made, Run.new(tmp_path / "run"), silent=True)
    (loaded,) = trainer._loader(trainer.splits.train).init_batches(trainer._order(), 1)
    parameters = {name: value for module in made.modules.values() for name, value in module.named_parameters()}

    def gradients() -> dict[str, bytes]:
        for parameter in parameters.values():
            parameter.grad = None
        made.backward([trainer._to_device(loaded)], trainer.modules, trainer.engine, 1200)
        return {
            name: value.grad.contiguous().view(-1).numpy().tobytes()
            for name, value in parameters.items()
            if value.grad is not None
        }

    plain = gradients()
    with FlopCounter() as counter:
        counted = gradients()
    assert counted == plain
    assert counter.flops > 0
    trainer.close()


def test_tokens_are_the_codes_of_a_batch(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    made = make_task(recipe, data, case.tiny)
    trainer = Trainer(made, Run.new(tmp_path / "run"), silent=True)
    (loaded,) = trainer._loader(trainer.splits.train).init_batches(trainer._order(), 1)
    tokens = made.num_tokens(loaded.batch)
    if case.tokenizer:
        with torch.no_grad():
            assert tokens == made.measure(made.modules, loaded.batch).sums["codes"].sum()
    elif recipe == "mulan":
        assert tokens is None
    else:
        assert tokens == (loaded.batch["codes"] >= 0).sum()
    trainer.close()


def test_modules_are_in_training_mode_after_every_step(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    made = make_task(recipe, data, case.tiny)
    trainer = Trainer(made, Run.new(tmp_path / "run"), silent=True)

    def check(logs: dict[str, Any]) -> None:
        # Validation, samples and a checkpoint lie behind some of these steps.
        assert all(part.training for module in made.modules.values() for part in module.modules()), logs["step"]
        assert not any(module.training for module in trainer.state.ema.modules.values())
        assert all(parameter.grad is None for module in made.modules.values() for parameter in module.parameters())
        assert all(parameter.requires_grad for module in made.modules.values() for parameter in module.parameters())

    trainer.train(log_fn=check)
    trainer.close()
    assert trainer.step == 12
