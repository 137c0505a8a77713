"""NaN and Inf, wherever they come from, are never stepped on and never saved; what is to blame is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from contract.cases import Case
from contract.worlds import make_task
from faults.conftest import Ledger
from faults.ledger import WHOLE
from helpers import log_text, metrics, state, step_folder, steps_saved, tensor_hashes
from quintet.common.batch import Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.errors import RunError
from quintet.training.order import Order
from quintet.training.phase import Loss
from quintet.training.run_folder import Run
from quintet.training.task import Task
from quintet.training.trainer import Trainer

LIMIT = 3
KEYS = (
    f"train.max_nonfinite_steps={LIMIT}",
    "checkpoint.every=1",
    "checkpoint.keep=100",
    "eval.every=100",
    "optim.decay_steps=12",
)
GOOD_STEPS = 6
"""Steps before the fault: every phase of every recipe is active by then."""

VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@pytest.fixture(params=VALUES.values() if WHOLE else [math.nan], ids=VALUES if WHOLE else ["nan"])
def value(request: pytest.FixtureRequest) -> float:
    return float(request.param)


@dataclass
class Spoilt:
    """A source of which some items hold a non-finite number."""

    source: Dataset
    case: Case
    items: set[int]
    value: float

    def __len__(self) -> int:
        return len(self.source)

    def name(self, item: int) -> str:
        return self.source.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        loaded = self.source.load(item, rng)
        return self.case.poison(loaded, self.value) if item in self.items else loaded


def in_the_loss(recipe: Task[Any], trainer: Callable[[], Trainer], value: float, steps: Collection[int]) -> None:
    for place, phase in enumerate(recipe.phases):

        def loss(*arguments: Any, own: Any = phase.loss) -> Loss:
            made: Loss = own(*arguments)
            return replace(made, value=made.value * value) if arguments[-1] in steps else made

        recipe.phases[place] = replace(phase, loss=loss)


def in_the_gradient(recipe: Task[Any], trainer: Callable[[], Trainer], value: float, steps: Collection[int]) -> None:
    def spoil(gradient: Tensor) -> Tensor:
        if trainer().step not in steps:
            return gradient
        spoilt = gradient.clone()
        spoilt[(0,) * spoilt.ndim] = value
        return spoilt

    a_parameter(recipe).register_hook(spoil)


def a_parameter(recipe: Task[Any]) -> Tensor:
    module = recipe.modules[recipe.phases[0].modules[0]]
    return next(parameter for parameter in module.parameters() if parameter.requires_grad)


def spoil_optimizer(trainer: Trainer, value: float) -> None:
    """One value of one optimizer moment, like a faulty memory cell."""
    moments = trainer.state.phases[0].optimizer.state[a_parameter(trainer.task)]
    moments["exp_avg"][(0,) * moments["exp_avg"].ndim] = value


def spoil_weights(trainer: Trainer, value: float) -> None:
    weight = a_parameter(trainer.task).data
    weight[(0,) * weight.ndim] = value


SPOILERS: dict[str, Callable[[Trainer, float], None]] = {"optimizer": spoil_optimizer, "weights": spoil_weights}


def spoiling_after(trainer: Trainer, spoil: Callable[[Trainer, float], None], value: float, step: int) -> Any:
    """A log function that does the damage once the step is taken."""
    return lambda logs: spoil(trainer, value) if logs["step"] == step else None


def assert_finite(run: Path) -> None:
    """Every tensor of every checkpoint."""
    for step in steps_saved(run):
        for path in step_folder(run, step).rglob("*.safetensors"):
            for name, tensor in load_file(path).items():
                assert tensor.isfinite().all(), f"step {step}, {path.name}, {name}"


def spoilt_trainer(
    recipe: Task[Any], case: Case, run: Run, value: float, bad_steps: Collection[int] | None, **options: Any
) -> tuple[Trainer, list[str]]:
    """Training on items that are spoilt in some steps, or in all steps from the seventh on; and the names of the spoilt
    items of the first bad step."""
    if case.poison is None:
        pytest.skip("its items have no floating-point value that always reaches the loss")
    splits, train = recipe.splits(), recipe.config.train
    order = Order(len(splits.train), train.batch_size, train.seed, recipe.lengths(splits.train))
    batches = [[item for _, item in order.batch(step)] for step in range(12)]
    if bad_steps is None:
        chosen = {*range(len(splits.train))} - {item for batch in batches[:GOOD_STEPS] for item in batch}
    else:
        chosen = {batches[step][0] for step in bad_steps}
        spoilt_earlier = [step for step in range(12) if step not in bad_steps and chosen & {*batches[step]}]
        assert not spoilt_earlier, "the data set is too small to spoil these steps alone"
    first = min(bad_steps) if bad_steps else GOOD_STEPS
    names = [splits.train.name(item) for item in batches[first] if item in chosen]
    spoilt = replace(splits, train=Spoilt(splits.train, case, chosen, value))
    return Trainer(recipe, run, splits=spoilt, silent=True, **options), names


def test_a_spoilt_item_costs_its_step_and_is_named(
    recipe: str, case: Case, data: Path, value: float, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made = make_task(recipe, data, (*case.tiny, *KEYS, "train.steps=2"))
    trainer, names = spoilt_trainer(made, case, Run.new(run), value, [1])
    trainer.train()
    trainer.close()

    assert state(run)["status"] == "finished"
    assert (trainer.state.progress.bad_steps, trainer.state.progress.bad_steps_in_a_row) == (1, 1)
    # Every bit is as it was; the last step is saved all the same.
    assert tensor_hashes(run, 2) == tensor_hashes(run, 1)
    assert f"step 2: non-finite loss or gradient, step skipped; items: {', '.join(names)}\n" in log_text(run)
    assert {"step": 2, "train/bad_steps": 1, "items": names} in metrics(run)
    ledger("non-finite-data", 1)


def test_spoilt_items_without_end_stop_the_run_with_its_weights_safe(
    recipe: str, case: Case, data: Path, value: float, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made = make_task(recipe, data, (*case.tiny, *KEYS))
    trainer, _ = spoilt_trainer(made, case, Run.new(run), value, None)
    with pytest.raises(RunError, match=r"3 non-finite steps in a row .* weights are finite and saved at step 9"):
        trainer.train()
    trainer.close()

    assert state(run)["status"] == "failed"
    # None amid the bad steps: the newest checkpoint before them is what a roll-back returns to.
    assert steps_saved(run) == [1, 2, 3, 4, 5, 6, 9]
    assert tensor_hashes(run, 9) == tensor_hashes(run, 6)
    assert_finite(run)
    ledger("non-finite-data", 1)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_bad_loss_or_gradient_is_skipped_and_too_many_stop_the_run(
    where: str, recipe: str, case: Case, data: Path, value: float, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made = make_task(recipe, data, (*case.tiny, *KEYS))
    holder: list[Trainer] = []
    spoil = in_the_loss if where == "loss" else in_the_gradient
    spoil(made, lambda: holder[0], value, [GOOD_STEPS, *range(8, 12)])
    holder.append(Trainer(made, Run.new(run), silent=True))
    with pytest.raises(RunError, match=r"3 non-finite steps in a row .* weights are finite and saved at step 11"):
        holder[0].train()
    holder[0].close()

    assert holder[0].state.progress.bad_steps == 4
    assert tensor_hashes(run, 8) != tensor_hashes(run, 6), "the training goes on after one bad step"
    assert tensor_hashes(run, 11) == tensor_hashes(run, 8)
    assert "step 7: non-finite loss or gradient, step skipped; items: " in log_text(run)
    assert_finite(run)
    ledger(f"non-finite-{where}", 2)


@pytest.mark.parametrize("where", SPOILERS)
def test_a_nonfinite_state_is_not_saved_and_is_reported(
    where: str, recipe: str, case: Case, data: Path, value: float, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    trainer = Trainer(make_task(recipe, data, (*case.tiny, *KEYS)), Run.new(run), silent=True)
    with pytest.raises(
        RunError, match=r"training state is not finite .* was not saved; the newest checkpoint, step 6, is finite"
    ):
        trainer.train(log_fn=spoiling_after(trainer, SPOILERS[where], value, 6))
    trainer.close()

    # At the limit, or, where no loss meets the broken number, when it would be saved.
    assert trainer.step in (6 + LIMIT, 7)
    if trainer.step > 7:
        assert "step 7: non-finite weights or optimizer state, step skipped; tensors: " in log_text(run)
    assert steps_saved(run)[-1] == 6
    assert_finite(run)
    if where == "optimizer":
        assert all(
            tensor.isfinite().all() for module in trainer.task.modules.values() for tensor in module.parameters()
        )
    # The run on disk resumes exactly.
    again = Trainer(make_task(recipe, data, (*case.tiny, *KEYS)), Run.open(run), resume=True, silent=True)
    again.train()
    again.close()
    assert tensor_hashes(run, 12) == tensor_hashes(undisturbed(recipe, case, data, tmp_path), 12)
    ledger(f"non-finite-{where}", 1)


def undisturbed(recipe: str, case: Case, data: Path, folder: Path) -> Path:
    trainer = Trainer(make_task(recipe, data, (*case.tiny, *KEYS)), Run.new(folder / "undisturbed"), silent=True)
    trainer.train()
    trainer.close()
    return folder / "undisturbed"


def test_weights_that_break_in_the_last_step_are_not_saved(
    recipe: str, case: Case, data: Path, value: float, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made = make_task(recipe, data, (*case.tiny, *KEYS))
    trainer = Trainer(made, Run.new(run), silent=True)
    after_step = made.after_step

    def break_in_the_last(statistics: Any, step: int) -> None:
        after_step(statistics, step)
        if step == 11:
            spoil_weights(trainer, value)

    made.after_step = break_in_the_last  # type: ignore[method-assign]
    with pytest.raises(RunError, match="step 12: the training state is not finite"):
        trainer.train()
    trainer.close()

    assert steps_saved(run)[-1] == 11
    assert_finite(run)
    ledger("non-finite-weights", 1)


# --- roll-backs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", SPOILERS)
def test_a_nonfinite_run_rolls_back_and_continues(
    where: str, recipe: str, case: Case, data: Path, value: float, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made = make_task(recipe, data, (*case.tiny, *KEYS, "train.max_rollbacks=1"))
    trainer = Trainer(made, Run.new(run), silent=True)
    trainer.train(log_fn=spoiling_after(trainer, SPOILERS[where], value, 6))
    trainer.close()

    assert state(run)["status"] == "finished"
    assert trainer.state.progress.rollbacks == 1
    assert "rolled back to the weights of step 6, continuing with the next items (rollback 1 of 1)" in log_text(run)
    assert_finite(run)
    assert tensor_hashes(run, 12) != tensor_hashes(run, 6)
    ledger("roll-back", 1)


def test_a_run_rolls_back_as_often_as_it_may_and_no_more(
    recipe: str, case: Case, data: Path, tmp_path: Path, ledger: Ledger
) -> None:
    run = tmp_path / "run"
    made = make_task(recipe, data, (*case.tiny, *KEYS, "train.max_rollbacks=1"))
    trainer, _ = spoilt_trainer(made, case, Run.new(run), math.nan, None)
    with pytest.raises(RunError, match="3 non-finite steps in a row"):
        trainer.train()
    trainer.close()

    assert (trainer.step, trainer.state.progress.rollbacks) == (12, 1)
    assert tensor_hashes(run, 12) == tensor_hashes(run, 6)
    ledger("roll-back", 1)


@pytest.mark.parametrize("stop", [7, 8, 9, 10])
def test_a_run_stopped_about_a_roll_back_resumes_exactly(
    stop: int, recipe: str, case: Case, data: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Bad steps 7 to 9, a roll-back after the ninth; stopped amid them, right after them, and later."""
    words = (*case.tiny, *KEYS, "train.max_rollbacks=1")
    bad = [6, 7, 8]

    def train(folder: str, steps: int, resume: bool) -> Path:
        made = make_task(recipe, data, (*words, f"train.steps={steps}"))
        run = Run.open(tmp_path / folder) if resume else Run.new(tmp_path / folder)
        trainer, _ = spoilt_trainer(made, case, run, math.nan, bad, resume=resume)
        trainer.train()
        trainer.close()
        return tmp_path / folder

    whole = train("whole", 12, resume=False)
    train("parts", stop, resume=False)
    parts = train("parts", 12, resume=True)

    assert "rolled back" in log_text(whole)
    assert tensor_hashes(parts, 12) == tensor_hashes(whole, 12)
    ledger("roll-back", 1)
