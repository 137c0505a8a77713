"""The training loop with a toy task: steps, failures, saving and resuming."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from toy import (
    BucketedTask,
    Points,
    ToyConfig,
    ToyTask,
    points,
    saved_hashes,
    toy_config,
    toy_trainer,
    trained,
    weights,
)

from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.common.weights import checkpoint
from quintet.data.splits import Splits
from quintet.errors import CheckpointError, RunError, UsageError
from quintet.training.engine import Engine
from quintet.training.order import Order
from quintet.training.phase import Modules, frozen
from quintet.training.run_folder import Run
from quintet.training.task import Report
from quintet.training.trainer import Trainer


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def log_text(trainer: Trainer) -> str:
    return trainer.run.log_file.read_text(encoding="utf-8")


def state(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "state.json").read_text(encoding="utf-8")))


# --- a step -------------------------------------------------------------------------------------------------------


def plain_training(steps: int) -> nn.Module:
    """The toy's training in the plainest way: torch's own optimizer and clipping, the schedule by its formula."""
    recipe = ToyTask(toy_config())
    net = recipe.net.double()
    matrices = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=False)
    for step in range(steps):
        slots = Order(24, batch_size=4, seed=0).batch(step)
        items = [recipe.data.train.load(item, ItemRNG(0, [epoch], [item])) for epoch, item in slots]
        x, y = (torch.stack([item[name] for item in items]).double() for name in ("x", "y"))
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        warm, cold = (step + 1) / 3, (1 + math.cos(math.pi * (step - 2) / (steps - 2))) / 2
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (warm if step < 2 else cold)
        optimizer.step()
    return net


def test_the_loop_equals_a_plain_training(tmp_path: Path) -> None:
    own = trained(tmp_path / "run", engine__precision="fp64").task.modules["net"]
    for name, value in plain_training(steps=6).named_parameters():
        torch.testing.assert_close(own.get_parameter(name), value, rtol=1e-12, atol=1e-12, msg=name)


def test_micro_batches_make_no_difference(tmp_path: Path) -> None:
    one, four = (
        weights(
            trained(
                tmp_path / str(accumulate),
                engine__precision="fp64",
                train__batch_size=8,
                train__grad_accum_steps=accumulate,
                model__critic=True,
            )
        )
        for accumulate in (1, 4)
    )
    for name, value in one.items():
        torch.testing.assert_close(four[name], value, rtol=1e-12, atol=1e-12, msg=name)


def test_evaluation_does_not_change_the_training(tmp_path: Path) -> None:
    never = trained(tmp_path / "never", model__dropout=0.3)
    always = trained(
        tmp_path / "always", model__dropout=0.3, eval__every=1, sample__every=1, checkpoint__every=1, log__every=2
    )
    assert equal(weights(never), weights(always))
    assert len(list((tmp_path / "always" / "samples").iterdir())) == 6


def test_dropout_is_on_in_training_and_off_in_evaluation(tmp_path: Path) -> None:
    """A model put into eval mode for validation and never back is a known defect of the originals."""
    trainer = toy_trainer(tmp_path / "run", model__dropout=0.5, eval__every=1)
    modes: list[bool] = []
    trainer.task.modules["net"].register_forward_hook(lambda module, *_: modes.append(module.training))
    trainer.train()
    trainer.close()
    batches = 2  # seven validation items, in batches of four
    assert modes == ([True] + [False] * batches) * 5 + [True] + [False] * batches + [False]  # the last: a sample
    assert all(part.training for part in trainer.task.modules["net"].modules())


def test_the_same_seed_is_the_same_run_and_another_is_not(tmp_path: Path) -> None:
    one, two, other = (trained(tmp_path / name, train__seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert equal(weights(one), weights(two))
    assert not equal(weights(one), weights(other))


def test_workers_make_no_difference(tmp_path: Path) -> None:
    alone, helped = (trained(tmp_path / str(workers), data__num_workers=workers) for workers in (0, 1))
    assert equal(weights(alone), weights(helped))


def test_statistics_of_every_step_arrive_in_the_order_of_the_batch(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run", train__batch_size=8, train__grad_accum_steps=2)
    recipe = trainer.task
    assert isinstance(recipe, ToyTask)
    slots = [slot for step in range(6) for slot in trainer._order().batch(step)]
    assert recipe.order == [f"point-{item}" for _, item in slots]
    assert trainer.state.progress.items_seen == 48


def test_train_step_returns_its_loss_parts_and_moves_one_step(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", model__critic=True)
    before = weights(trainer)
    logs = trainer.train_step()
    assert {"fit/loss", "fit/error", "critic/loss", "step"} <= logs.keys()
    assert logs["step"] == trainer.step == 1
    assert isinstance(logs["fit/loss"], Tensor)
    assert not logs["fit/loss"].requires_grad
    assert not torch.equal(weights(trainer)["net/head.weight"], before["net/head.weight"])
    assert all(parameter.grad is None for parameter in trainer.task.modules["net"].parameters())
    trainer.close()


def test_stepping_by_hand_is_the_same_training(tmp_path: Path) -> None:
    by_hand = toy_trainer(tmp_path / "hand")
    for _ in range(6):
        by_hand.train_step()
    with pytest.raises(RunError, match=r"all 6 steps are done; raise train\.steps"):
        by_hand.train_step()
    assert equal(weights(by_hand), weights(trained(tmp_path / "loop")))
    by_hand.close()


def test_log_function_gets_every_step_and_the_samples(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    trainer = toy_trainer(tmp_path / "run", sample__every=3, eval__every=2, log__every=2)
    trainer.train(seen.append)
    trainer.close()
    assert [logs["step"] for logs in seen] == [1, 2, 3, 4, 5, 6]
    assert ["made" in logs for logs in seen] == [False, False, True, False, False, True]
    assert ["validation/error" in logs for logs in seen] == [False, True, False, True, False, True]
    assert ["train/fit/loss" in logs for logs in seen] == [False, True, False, True, False, True]
    assert all("fit/loss" in logs for logs in seen)


def test_logged_metrics_are_means_since_the_last_row(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    trainer = toy_trainer(tmp_path / "run", log__every=3)
    trainer.train(seen.append)
    trainer.close()
    losses = [float(logs["fit/loss"]) for logs in seen]
    rows = [row["train/fit/loss"] for row in trainer.run.read_metrics() if "train/fit/loss" in row]
    assert rows == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3])


# --- phases and recipes of other kinds ----------------------------------------------------------------------------


def test_an_inactive_phase_moves_nothing(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", model__critic=True, model__critic_start=3)
    start = {name: value.clone() for name, value in trainer.task.modules["critic"].state_dict().items()}
    moved = []
    for _ in range(5):
        logs = trainer.train_step()
        now = trainer.task.modules["critic"].state_dict()
        moved.append(any(not torch.equal(value, start[name]) for name, value in now.items()))
        assert ("critic/loss" in logs) == moved[-1]
    trainer.close()
    assert moved == [False, False, False, True, True]


def test_a_second_phase_does_not_touch_the_first(tmp_path: Path) -> None:
    alone, beside = (trained(tmp_path / str(critic), model__critic=critic) for critic in (False, True))
    own, other = weights(alone), weights(beside)
    assert all(torch.equal(value, other[name]) for name, value in own.items())
    assert other.keys() - own.keys() >= {"critic/weight", "optim/critic/exp_avg/critic.weight"}


def test_every_phase_has_its_own_rate_clip_and_decay_on_one_schedule(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", model__critic=True, optim__critic={"lr": 0.04, "max_grad_norm": 1e-3})
    rates = []
    for _ in range(4):
        trainer.train_step()
        rates.append([state.optimizer.param_groups[0]["lr"] for state in trainer.state.phases])
    trainer.close()
    assert [critic for _, critic in rates] == pytest.approx([4 * fit for fit, _ in rates])
    assert [state.phase.optim.max_grad_norm for state in trainer.state.phases] == [1.0, 1e-3]


def test_a_custom_schedule(tmp_path: Path) -> None:
    asked: list[int] = []

    def schedule(step: int) -> float:
        asked.append(step)
        return 0.0

    trainer = trained(tmp_path / "run", arguments={"lr_schedule": schedule}, ema__enabled=False)
    fresh = ToyTask(toy_config()).net
    assert set(asked) == set(range(6))
    assert all(
        torch.equal(value, trainer.task.modules["net"].get_parameter(name)) for name, value in fresh.named_parameters()
    )


class WholeBatch(ToyTask):
    """Overrides `backward`: one pass over all micro-batches at once, as GradCache would."""

    def backward(self, micro_batches: Sequence[Batch], modules: Modules, engine: Engine, step: int) -> Report:
        whole = micro_batches[0]
        for more in micro_batches[1:]:
            fields = {name: torch.cat([whole[name], more[name]]) for name in ("x", "y")}
            whole = Batch(fields, whole.names + more.names, more.rng)
        with engine.micro_batch(modules, step, 0, synchronise=True):
            output = self.forward(modules, whole, step)
            loss = self.fit_loss(modules, whole, output, step)
            loss.value.backward()  # type: ignore[no-untyped-call]
        return Report({"fit/loss": loss.value.detach()}, output.statistics)


def test_a_task_may_override_backward(tmp_path: Path) -> None:
    options: dict[str, Any] = {"engine__precision": "fp64", "train__batch_size": 8, "train__grad_accum_steps": 2}
    own = weights(trained(tmp_path / "own", kind=WholeBatch, **options))
    for name, value in weights(trained(tmp_path / "plain", **options)).items():
        torch.testing.assert_close(own[name], value, rtol=1e-12, atol=1e-12, msg=name)


def test_a_task_with_lengths_gets_batches_of_similar_length(tmp_path: Path) -> None:
    recipe = trained(tmp_path / "run", kind=BucketedTask, data=points(num=300)).task
    assert isinstance(recipe, BucketedTask)
    numbers = [int(name.split("-")[1]) for name in recipe.order]
    spreads = [max(numbers[start : start + 4]) - min(numbers[start : start + 4]) for start in range(0, 24, 4)]
    assert max(spreads) < 30  # of 300; a random batch spreads over about 180


def test_a_frozen_module_passes_gradients_and_accumulates_none() -> None:
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad_(False)
    x = torch.ones(1, 2, requires_grad=True)
    with frozen(layer) as same:
        same(x).sum().backward()
    with pytest.raises(ZeroDivisionError), frozen(layer):
        raise ZeroDivisionError
    assert x.grad is not None
    assert layer.weight.grad is None
    assert layer.weight.requires_grad
    assert not layer.bias.requires_grad


# --- bad steps ----------------------------------------------------------------------------------------------------


def step_of_item(trainer: Trainer, item: int) -> int:
    return next(step for step in range(99) if item in [number for _, number in trainer._order().batch(step)])


def test_a_bad_item_costs_one_step_and_is_named(tmp_path: Path) -> None:
    trainer = toy_trainer(
        tmp_path / "run", data=points(poisoned=frozenset({5})), train__batch_size=8, train__grad_accum_steps=2
    )
    bad = step_of_item(trainer, 5)
    assert bad < 3
    for step in range(3):
        before = weights(trainer)
        trainer.train_step()
        assert equal(weights(trainer), before) == (step == bad)
        assert trainer.step == step + 1
    trainer.close()
    assert trainer.state.progress.bad_steps == 1
    assert trainer.state.progress.bad_steps_in_a_row == 0
    assert f"step {bad + 1}: non-finite" in log_text(trainer)
    (row,) = [row for row in trainer.run.read_metrics() if "items" in row]
    assert row == {"step": bad + 1, "train/bad_steps": 1, "items": ["point-5"]}


class Exploding(ToyTask):
    """Its loss is infinite though no item is to blame."""

    def fit_loss(self, modules: Modules, batch: Batch, output: Any, step: int) -> Any:
        loss = super().fit_loss(modules, batch, output, step)
        loss.value = loss.value * float("inf")
        return loss


def test_without_a_nonfinite_item_all_items_are_named(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", kind=Exploding, train__batch_size=8, train__grad_accum_steps=2)
    trainer.train_step()
    trainer.close()
    (row,) = trainer.run.read_metrics()
    assert row["items"] == [f"point-{item}" for _, item in trainer._order().batch(0)]


class BadGradient(ToyTask):
    """A finite loss whose gradient is not: the slope of a square root at 0."""

    def fit_loss(self, modules: Modules, batch: Batch, output: Any, step: int) -> Any:
        loss = super().fit_loss(modules, batch, output, step)
        loss.value = loss.value + (output["made"] * 0).sum().abs().sqrt()
        return loss


def test_a_bad_gradient_of_a_good_loss_is_noticed(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", kind=BadGradient)
    before = weights(trainer)
    logs = trainer.train_step()
    trainer.close()
    assert logs["fit/loss"].isfinite()
    assert equal(weights(trainer), before)
    assert trainer.state.progress.bad_steps == 1


def test_too_many_bad_steps_stop_the_run_with_finite_weights(tmp_path: Path) -> None:
    everything = frozenset(range(24)) - {0, 1}
    trainer = toy_trainer(
        tmp_path / "run",
        data=points(poisoned=everything),
        train__max_nonfinite_steps=3,
        train__batch_size=8,
        train__steps=50,
    )
    before = weights(trainer)
    with pytest.raises(RunError, match=r"3 non-finite steps in a row \(train\.max_nonfinite_steps\)"):
        trainer.train()
    trainer.close()
    assert trainer.step == 3
    assert equal(weights(trainer), before)
    checkpoint.verify(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert state(tmp_path / "run")["status"] == "failed"


class Hungry(ToyTask):
    """Asks the real allocator for more than there is, from the third step on."""

    def forward(self, modules: Modules, batch: Batch, step: int) -> Any:
        if step >= self.config.model.critic_start:
            torch.empty(2**60, dtype=torch.uint8)
        return super().forward(modules, batch, step)


@pytest.mark.parametrize("start", [0, 3])
def test_out_of_memory_is_one_sentence_with_advice_that_can_be_followed(tmp_path: Path, start: int) -> None:
    trainer = toy_trainer(tmp_path / "run", kind=Hungry, model__critic_start=start, checkpoint__every=2)
    with pytest.raises(RunError, match=r"out of memory.*larger train\.grad_accum_steps \(now 1, try 2\)") as caught:
        trainer.train()
    trainer.close()
    if not checkpoint.steps(trainer.run.checkpoints):
        assert "resume" not in str(caught.value)  # there is nothing to resume from
    assert state(tmp_path / "run")["status"] == "failed"


# --- stopping and going on ----------------------------------------------------------------------------------------

LONG: dict[str, Any] = {"train__steps": 8, "optim__decay_steps": 8, "model__dropout": 0.2, "model__critic": True}


def test_a_resumed_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    trained(tmp_path / "straight", **LONG)
    trained(tmp_path / "broken", **{**LONG, "train__steps": 3})
    resumed = trained(tmp_path / "broken", resume=True, train__steps=8)
    assert saved_hashes(tmp_path / "broken", 8) == saved_hashes(tmp_path / "straight", 8)
    assert "resumed from" in log_text(resumed)
    assert resumed.state.progress.items_seen == 32


def test_the_schedule_keeps_decay_steps_when_a_run_is_extended(tmp_path: Path) -> None:
    trained(tmp_path / "run", train__steps=4)
    resumed = trained(tmp_path / "run", resume=True, train__steps=6)
    assert resumed.config.optim.decay_steps == 4
    assert resumed.lr_schedule(5) == 0
    assert "the schedule ends at step 4 (optim.decay_steps), and the learning rate is 0" in log_text(resumed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_at_the_next_boundary_and_exits_with_its_code(tmp_path: Path, number: signal.Signals) -> None:
    trainer = toy_trainer(tmp_path / "run", **LONG)

    def interrupt(logs: dict[str, Any]) -> None:
        if logs["step"] == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(SystemExit) as ended:
        trainer.train(interrupt)
    trainer.close()
    assert ended.value.code == 128 + number
    assert trainer.step == 4
    assert state(tmp_path / "run")["status"] == "stopped"
    trained(tmp_path / "run", resume=True)
    trained(tmp_path / "straight", **LONG)
    assert saved_hashes(tmp_path / "run", 8) == saved_hashes(tmp_path / "straight", 8)


def test_the_time_limit_saves_and_ends_without_an_error(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run", train__minutes=1e-9)
    assert trainer.step == 1
    assert state(tmp_path / "run")["status"] == "stopped"
    assert saved_hashes(tmp_path / "run", 1)
    assert trained(tmp_path / "run", resume=True, train__minutes=None).step == 6
    assert state(tmp_path / "run")["status"] == "finished"


def test_a_failure_is_logged_and_raised(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run")

    def fail(logs: dict[str, Any]) -> None:
        raise ZeroDivisionError("of the user's own")

    with pytest.raises(ZeroDivisionError):
        trainer.train(fail)
    trainer.close()
    assert state(tmp_path / "run")["status"] == "failed"
    assert state(tmp_path / "run")["error"] == "of the user's own"


def test_metrics_after_the_checkpoint_are_logged_once(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", checkpoint__every=2)

    def fail(logs: dict[str, Any]) -> None:
        if logs["step"] == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.train(fail)
    trainer.close()
    assert [row["step"] for row in trainer.run.read_metrics()] == [1, 2, 3, 4, 5]
    resumed = trained(tmp_path / "run", resume=True)
    logged = [row["step"] for row in resumed.run.read_metrics() if "train/fit/loss" in row]
    assert logged == [1, 2, 3, 4, 5, 6]


def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path: Path) -> None:
    trained(tmp_path / "straight", **LONG)
    trained(tmp_path / "run", **LONG, checkpoint__every=3)
    damaged = tmp_path / "run" / "checkpoints" / "step-00000008" / "net.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    resumed = trained(tmp_path / "run", resume=True)
    assert f"damaged checkpoint skipped: {damaged} is damaged" in log_text(resumed)
    assert "resumed from" in log_text(resumed)
    assert saved_hashes(tmp_path / "run", 8) == saved_hashes(tmp_path / "straight", 8)


def test_old_checkpoints_are_deleted_after_a_new_one_is_complete(tmp_path: Path) -> None:
    """A damaged newer checkpoint must not count as one of the newest that are kept."""
    trained(tmp_path / "run", train__steps=4, checkpoint__every=2)
    (tmp_path / "run" / "checkpoints" / "step-00000004" / "meta.json").unlink()
    trained(tmp_path / "run", resume=True, train__steps=3, checkpoint__keep=1)
    assert checkpoint.newest_sound(tmp_path / "run" / "checkpoints")[0].name == "step-00000003"


def test_a_run_without_a_valid_checkpoint_is_an_error(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000006" / "meta.json").unlink()
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged: .*meta\.json is missing"):
        toy_trainer(tmp_path / "run", resume=True)


def test_a_run_may_resume_in_another_precision(tmp_path: Path) -> None:
    trained(tmp_path / "run", train__steps=3)
    resumed = trained(tmp_path / "run", resume=True, train__steps=6, engine__precision="fp64")
    assert resumed.task.modules["net"].get_parameter("head.weight").dtype == torch.float64
    straight = trained(tmp_path / "straight", optim__decay_steps=3)
    for name, value in weights(straight).items():
        torch.testing.assert_close(weights(resumed)[name].float(), value.float(), rtol=1e-3, atol=1e-4, msg=name)


def test_another_machine_is_mentioned(tmp_path: Path) -> None:
    trained(tmp_path / "run", train__steps=3)
    torch.set_num_threads(torch.get_num_threads() + 1)
    assert "warning: threads was" in log_text(trained(tmp_path / "run", resume=True, train__steps=4))


@pytest.mark.parametrize("fingerprint", ["changed", "missing", "broken"])
def test_other_data_is_refused_on_resume(tmp_path: Path, fingerprint: str) -> None:
    trained(tmp_path / "run", train__steps=2)
    data = None
    if fingerprint == "changed":
        data = points(num=25)
    elif fingerprint == "missing":
        (tmp_path / "run" / "data.json").unlink()
    else:
        (tmp_path / "run" / "data.json").write_text('{"train": [', encoding="utf-8")
    pattern = r"1 items added such as point-24, 0 removed" if data else r"data\.json"
    with pytest.raises(UsageError, match=pattern):
        toy_trainer(tmp_path / "run", resume=True, data=data, train__steps=4)


# --- saving -------------------------------------------------------------------------------------------------------


def test_saving_the_same_step_twice_writes_once(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run")
    trainer.train_step()
    trainer.save()
    folder = tmp_path / "run" / "checkpoints" / "step-00000001"
    before = folder.stat().st_ino
    trainer.save()
    assert folder.stat().st_ino == before
    trainer.close()


def test_training_continues_from_a_loaded_checkpoint(tmp_path: Path) -> None:
    other = trained(tmp_path / "other", **LONG, checkpoint__every=5)
    trainer = toy_trainer(tmp_path / "run", **{**LONG, "train__seed": 0})
    trainer.train_step()
    trainer.load(tmp_path / "other" / "checkpoints" / "step-00000005")
    assert trainer.step == 5
    for _ in range(3):
        trainer.train_step()
    trainer.close()
    assert equal(weights(trainer), weights(other))


def test_a_loaded_state_is_saved_even_at_a_step_saved_before(tmp_path: Path) -> None:
    trained(tmp_path / "other", train__steps=2, train__seed=5)
    trainer = toy_trainer(tmp_path / "run")
    for _ in range(2):
        trainer.train_step()
    trainer.save()
    trainer.load(tmp_path / "other" / "checkpoints" / "step-00000002")
    trainer.save()
    trainer.close()
    assert saved_hashes(tmp_path / "run", 2) == saved_hashes(tmp_path / "other", 2)


def test_loading_without_the_optimizer_takes_the_weights_alone_and_starts_at_step_0(tmp_path: Path) -> None:
    trained(tmp_path / "other", train__steps=5)
    trainer = toy_trainer(tmp_path / "run")
    trainer.train_step()
    trainer.load(tmp_path / "other" / "checkpoints" / "step-00000005", restore_optimizer=False)
    loaded = weights(trainer)
    assert (trainer.step, trainer.state.progress.items_seen) == (0, 0)
    assert not [name for name in loaded if name.startswith("optim/")]
    trainer.close()
    straight = toy_trainer(tmp_path / "straight")
    straight.load(tmp_path / "other" / "checkpoints" / "step-00000005", restore_optimizer=False)
    assert equal(weights(straight), loaded)
    for each in (trainer, straight):
        each.train_step()
    straight.close()
    assert equal(weights(trainer), weights(straight))


def test_a_damaged_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    trained(tmp_path / "other", train__steps=2)
    folder = tmp_path / "other" / "checkpoints" / "step-00000002"
    (folder / "extra.json").touch()
    trainer = toy_trainer(tmp_path / "run")
    before = weights(trainer)
    with pytest.raises(CheckpointError, match=r"extra\.json"):
        trainer.load(folder)
    trainer.close()
    assert equal(weights(trainer), before)


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", checkpoint__every=2)
    trainer.run.checkpoints.mkdir()
    (trainer.run.checkpoints / ".writing-step-00000004").touch()  # a file where the temporary folder should be
    trainer.train()
    trainer.close()
    assert "could not save step 4" in log_text(trainer)
    assert {path.name for path in trainer.run.checkpoints.glob("step-*")} == {"step-00000002", "step-00000006"}


def test_a_final_checkpoint_that_cannot_be_saved_is_a_failure(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", checkpoint__every=2)
    trainer.run.checkpoints.mkdir()
    (trainer.run.checkpoints / ".writing-step-00000006").touch()
    with pytest.raises(RunError, match="could not save the final checkpoint"):
        trainer.train()
    trainer.close()
    checkpoint.verify(tmp_path / "run" / "checkpoints" / "step-00000004")


def test_the_last_checkpoint_of_a_run_without_patience_cannot_fail_unnoticed(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"train__patience": 1, "eval__every": 1, "optim__lr": 1e-30, "checkpoint__every": 100}
    trainer = toy_trainer(tmp_path / "run", **keys)
    trainer.run.checkpoints.mkdir()
    (trainer.run.checkpoints / ".writing-step-00000002").touch()
    with pytest.raises(RunError, match="could not save the final checkpoint"):
        trainer.train()
    trainer.close()
    assert trainer.step == 2


def test_a_checkpoint_is_complete_even_if_an_old_one_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(root: Path, *arguments: Any, **keywords: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(checkpoint, "prune", refuse)
    trainer = trained(tmp_path / "run")
    assert trainer.saved_step == 6
    assert "could not save" not in log_text(trainer)


def test_the_best_checkpoint_is_kept_and_pointed_to(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path / "run",
        train__steps=12,
        eval__every=1,
        checkpoint__keep=1,
        optim__lr=0.3,
        optim__max_grad_norm=None,
        ema__decay=0.01,
    )
    errors = {row["step"]: row["validation/error"] for row in trainer.run.read_metrics() if "validation/error" in row}
    best = min(errors, key=lambda step: errors[step])
    assert 1 < best < 12  # or the test shows nothing
    assert state(tmp_path / "run")["best"] == {"metric": "error", "value": errors[best], "step": best}
    pointed = checkpoint.read_pointer(trainer.run.checkpoints, "best")
    assert pointed is not None
    assert checkpoint.step_of(pointed) == best
    assert [checkpoint.step_of(path) for path in checkpoint.steps(trainer.run.checkpoints)] == [best, 12]
    checkpoint.verify(pointed)


def test_the_best_step_survives_a_resume(tmp_path: Path) -> None:
    trained(tmp_path / "run", eval__every=1)
    best = state(tmp_path / "run")["best"]
    trainer = toy_trainer(tmp_path / "run", resume=True)
    assert trainer.state.progress.best_value == best["value"]
    assert trainer.state.progress.best_step == best["step"]
    trainer.close()


# --- beginning ----------------------------------------------------------------------------------------------------


def test_nothing_is_written_for_data_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of the 24 items can be read"):
        toy_trainer(tmp_path / "run", data=points(broken=frozenset(range(24))))
    Run.new(tmp_path / "run")  # the same folder may be named again


def test_a_trainer_that_cannot_start_releases_the_folder(tmp_path: Path) -> None:
    trained(tmp_path / "run", train__steps=2)
    (tmp_path / "run" / "checkpoints" / "step-00000002" / "meta.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        toy_trainer(tmp_path / "run", resume=True)
    other = Run(tmp_path / "run")
    other.lock()  # though the failed trainer is still in the traceback
    other.close()
    assert caught.tb is not None


def test_validation_items_that_cannot_be_read_are_an_error_before_training(tmp_path: Path) -> None:
    data = points()
    validation = data.validation
    assert isinstance(validation, Points)
    validation.broken = frozenset(range(len(validation)))
    with pytest.raises(UsageError, match="none of the 7 validation items can be read"):
        toy_trainer(tmp_path / "run", data=data)


def test_a_second_trainer_in_the_same_folder_is_locked_out(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", train__steps=2)
    first.run.lock()
    with pytest.raises(UsageError, match="is being written by process"):
        toy_trainer(tmp_path / "run", resume=True)
    first.close()


def test_weights_may_come_from_another_run(tmp_path: Path) -> None:
    other = trained(tmp_path / "other", train__seed=5)
    init = {"net": other.task.modules["net"].state_dict()}
    trainer = toy_trainer(tmp_path / "run", arguments={"init": init})
    own = weights(trainer)
    trainer.close()
    for name, value in init["net"].items():
        assert torch.equal(own[f"net/{name}"], value)
        assert torch.equal(own[f"ema/net/{name}"], value)
    with pytest.raises(CheckpointError, match="lacks tensor"):
        toy_trainer(tmp_path / "third", arguments={"init": {"net": {}}})


def test_initial_files_are_in_the_folder(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run", data=points(num=24, broken=frozenset({3})))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "config.yaml",
        "state.json",
        "metrics.jsonl",
        "log.txt",
        "data.json",
        "samples",
        "lock",
        "checkpoints",
    }
    data = json.loads((tmp_path / "run" / "data.json").read_text(encoding="utf-8"))
    assert data["train"] == [f"point-{item}" for item in range(24)]
    assert data["validation"] == [f"point-{item}" for item in range(1000, 1007)]
    assert trainer.config.optim.decay_steps == 6
    written = Run.open(tmp_path / "run").config_file.read_text(encoding="utf-8")
    assert written.startswith(trainer.config.to_yaml())


def test_unreadable_items_are_named_in_the_data_file_for_good(tmp_path: Path) -> None:
    """One is met before the run is broken off, the other after it was resumed."""
    order = toy_trainer(tmp_path / "order")._order()
    early, late = order.batch(0)[0][1], order.batch(4)[0][1]
    data = points(broken=frozenset({early, late}))
    data_file = tmp_path / "run" / "data.json"
    trained(tmp_path / "run", data=data, train__steps=2)
    assert json.loads(data_file.read_text(encoding="utf-8"))["skipped"].keys() == {f"point-{early}"}
    resumed = trained(tmp_path / "run", resume=True, data=points(broken=frozenset({early, late})), train__steps=6)
    assert json.loads(data_file.read_text(encoding="utf-8"))["skipped"].keys() == {f"point-{early}", f"point-{late}"}
    assert f"unreadable item replaced: point-{late} (point {late} is broken)" in log_text(resumed)


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 6), (2.5, 15), (0.01, 1), (1.1, 7)])
def test_epochs_set_the_steps_at_the_start(tmp_path: Path, epochs: float, steps: int) -> None:
    trainer = toy_trainer(tmp_path / "run", train__epochs=epochs)
    trainer.close()
    assert trainer.config.train.steps == steps
    assert trainer.config.optim.decay_steps == steps


def test_epochs_count_also_with_decay_steps(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", train__epochs=2.0, train__steps=1000, optim__decay_steps=500)
    trainer.close()
    assert trainer.config.train.steps == 12
    assert trainer.config.optim.decay_steps == 500


def test_a_resumed_run_of_epochs_may_be_extended(tmp_path: Path) -> None:
    trained(tmp_path / "run", train__epochs=0.5)
    assert trained(tmp_path / "run", resume=True, train__steps=5).step == 5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train__batch_size": 25}, r"train\.batch_size=25 is larger than the training data of 24 items; use .*=24"),
        ({"eval__batch_size": 8}, r"eval\.batch_size=8 is larger than the validation set of 7 items"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        toy_trainer(tmp_path / "run", **overrides)
    assert not (tmp_path / "run").exists()


class Contrastive(ToyTask):
    traits = replace(ToyTask.traits, minimum_batch=2)


def test_a_batch_too_small_for_the_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs train\.batch_size of at least 2 \(got 1\)"):
        toy_trainer(tmp_path / "run", kind=Contrastive, train__batch_size=1)


class Misnamed(ToyTask):
    """Its second phase trains a module that it does not have."""

    def __init__(self, config: ToyConfig, data: Splits | None = None) -> None:
        super().__init__(config, data)
        self.phases = [*self.phases, replace(self.phases[0], name="critic", modules=("critc",))]


class Upwards(ToyTask):
    traits = replace(ToyTask.traits, best=("error", "higher"))  # type: ignore[arg-type]


class Unexported(ToyTask):
    pipeline_class = type("OtherPipeline", (ToyTask.pipeline_class,), {"exported": "model"})


class Renamed(ToyTask):
    pipeline_class = type("OtherPipeline", (ToyTask.pipeline_class,), {"recipe": "other"})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Misnamed, "phase 'critic' trains 'critc', but the modules of the task are net"),
        (Upwards, "Traits.best must be 'max' or 'min', not 'higher'"),
        (Unexported, "the pipeline exports 'model', but the modules of the task are net"),
        (Renamed, "is 'toy', but the recipe of its pipeline is 'other'"),
    ],
)
def test_an_inconsistent_family_is_refused_before_training(tmp_path: Path, kind: type[ToyTask], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        toy_trainer(tmp_path / "run", kind=kind)
    assert not (tmp_path / "run").exists()


def test_a_best_metric_that_validation_does_not_have_is_named(tmp_path: Path) -> None:
    kind = type("Misspelt", (ToyTask,), {"traits": replace(ToyTask.traits, best=("eror", "min"))})
    with pytest.raises(UsageError, match="is the metric 'eror', but the metrics of the task are error"):
        trained(tmp_path / "run", kind=kind, eval__every=1)


class Unread(Contrastive):
    """Data that takes hours to encode."""

    def splits(self) -> Splits:
        raise AssertionError("the data was read")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"train__batch_size": 1}, r"needs train\.batch_size of at least 2"),
        ({"train__grad_accum_steps": 2}, "compares the items of a batch with each other"),
        ({"engine__world_size": 3}, r"engine\.world_size=3, but the launcher started 1 process"),
    ],
)
def test_invalid_keys_are_refused_before_the_data_is_read(tmp_path: Path, overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        toy_trainer(tmp_path / "run", kind=Unread, **overrides)
    assert not (tmp_path / "run").exists()


# --- looking ------------------------------------------------------------------------------------------------------


def test_validation_is_the_mean_over_all_items_whatever_the_batches(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run")
    for _ in range(3):
        trainer.train_step()
    figures = []
    for size in (1, 3, 7):
        trainer.config = trainer.config.changed({"eval.batch_size": size})
        figures.append(trainer.evaluate()["error"])
    live = trainer.evaluate(trainer.task.modules)["error"]
    trainer.close()
    assert figures == pytest.approx([figures[0]] * 3, rel=1e-6)
    assert live != figures[0]


def test_ema_and_live_weights_are_both_evaluated(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run", eval__every=2, sample__every=3)
    row = next(row for row in trainer.run.read_metrics() if "validation/error" in row)
    assert row["validation/live/error"] != row["validation/error"]
    names = {path.name for path in (tmp_path / "run" / "samples" / "step-00000003").iterdir()}
    assert names == {"made.txt", "live-made.txt", "samples.jsonl"}


def test_without_ema_only_the_live_weights_are_evaluated(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run", eval__every=2, sample__every=3, ema__enabled=False)
    row = next(row for row in trainer.run.read_metrics() if "validation/error" in row)
    assert "validation/live/error" not in row
    names = {path.name for path in (tmp_path / "run" / "samples" / "step-00000003").iterdir()}
    assert names == {"made.txt", "samples.jsonl"}
    assert not any(name.startswith("ema/") for name in saved_hashes(tmp_path / "run", 6))


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    trained(tmp_path / "run", log__trackers=["tensorboard"])
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"train/fit/loss" in events.read_bytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_modules_train_and_save_like_plain_ones(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", train__steps=2, optim__decay_steps=2)
    torch._dynamo.utils.counters.clear()
    compiled = trained(tmp_path / "compiled", train__steps=2, optim__decay_steps=2, engine__compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-5, atol=1e-6)
    again = trained(tmp_path / "compiled", resume=True, train__steps=2)
    assert again.step == 2


@pytest.mark.parametrize("rollbacks", [0, 1])
def test_a_nonfinite_value_that_no_loss_uses_is_not_saved(tmp_path: Path, rollbacks: int) -> None:
    run = tmp_path / "run"
    trainer = toy_trainer(run, train__steps=8, checkpoint__every=2, train__max_rollbacks=rollbacks)
    net = trainer.task.modules["net"]

    def spoil(logs: dict[str, Any]) -> None:
        if logs["step"] == 3:
            net.seen[0] = torch.nan  # no loss is made of it

    if rollbacks:
        trainer.train(log_fn=spoil)
        assert "rolled back to the weights of step 2" in (run / "log.txt").read_text()
        assert trainer.step == 8
    else:
        with pytest.raises(
            RunError, match=r"step 4: the training state is not finite .* the newest checkpoint, step 2, is finite"
        ):
            trainer.train(log_fn=spoil)
    trainer.close()
    assert all(value.isfinite().all() for value in saved_tensors(run).values())


def saved_tensors(run: Path) -> dict[str, torch.Tensor]:
    return {f"{path}/{name}": tensor for path in run.rglob("*.safetensors") for name, tensor in load_file(path).items()}


# --- saves beside the training ------------------------------------------------------------------------------------


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, waited = threading.Event(), []
    write = checkpoint.write

    def write_later(root: Path, step: int, contents: checkpoint.Contents) -> Path:
        waited.append(reached.wait(timeout=60))
        return write(root, step, contents)

    monkeypatch.setattr(checkpoint, "write", write_later)
    trainer = toy_trainer(tmp_path / "beside", checkpoint__every=3)
    trainer.train(lambda logs: reached.set() if logs["step"] == 5 else None)
    trainer.close()
    assert waited == [True, True]
    monkeypatch.undo()
    trained(tmp_path / "loop", checkpoint__every=3, checkpoint__background=False)
    for step in (3, 6):
        one, other = (
            checkpoint.hashes(checkpoint.folder_of(tmp_path / name / "checkpoints", step))
            for name in ("beside", "loop")
        )
        assert one.keys() == other.keys()
        # The key itself is in both files.
        assert {name for name in one if one[name] != other[name]} == {"config.yaml", checkpoint.MANIFEST}


def test_a_checkpoint_that_a_script_saves_is_there(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run")
    trainer.train_step()
    trainer.save()
    checkpoint.verify(trainer.run.checkpoints / "step-00000001")
    trainer.close()


def test_a_failed_save_is_reported_at_the_next_step_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpoint.write

    def fail_once(root: Path, step: int, contents: checkpoint.Contents) -> Path:
        if step == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))
        return write(root, step, contents)

    monkeypatch.setattr(checkpoint, "write", fail_once)
    trainer = trained(tmp_path / "run", checkpoint__every=2)
    assert "warning: could not save step 2 ([Errno 28] No space left on device" in log_text(trainer)
    assert [folder.name for folder in checkpoint.steps(trainer.run.checkpoints)] == ["step-00000004", "step-00000006"]


def test_a_training_that_fails_finishes_its_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the user after the checkpoint is complete."""
    raised = threading.Event()
    write = checkpoint.write

    def write_later(root: Path, step: int, contents: checkpoint.Contents) -> Path:
        assert raised.wait(timeout=60)
        return write(root, step, contents)

    def fail(logs: dict[str, Any]) -> None:
        if logs["step"] == 3:
            raised.set()
            raise RunError("something else")

    monkeypatch.setattr(checkpoint, "write", write_later)
    trainer = toy_trainer(tmp_path / "run", checkpoint__every=2)
    with pytest.raises(RunError, match="something else"):
        trainer.train(fail)
    checkpoint.verify(trainer.run.checkpoints / "step-00000002")
    trainer.close()
