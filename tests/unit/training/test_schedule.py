"""Schedulers of torch as functions of the step, and resuming with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from quintet.config import OptimConfig
from quintet.errors import UsageError
from quintet.training.schedule import TorchSchedule, describe_scheduler, parse_scheduler, schedule_of
from unit.training.toy import toy_trainer, trained, weights

SCHEDULERS = (
    "StepLR(step_size=3, gamma=0.5)",
    "MultiStepLR(milestones=[2, 7], gamma=0.1)",
    "ExponentialLR(gamma=0.9)",
    "CosineAnnealingLR(T_max=5, eta_min=1e-05)",
    "CosineAnnealingWarmRestarts(T_0=3)",
    "OneCycleLR(max_lr=0.01, total_steps=20, cycle_momentum=False)",
    "PolynomialLR(total_iters=6)",
    "ConstantLR",
)


def torch_rates(text: str, steps: int) -> list[float]:
    kind, options = parse_scheduler(text)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    scheduler = kind(optimizer, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("text", SCHEDULERS)
def test_the_rates_are_those_of_torch_in_any_order_of_steps(text: str) -> None:
    schedule = schedule_of(OptimConfig(lr=2e-3, scheduler=text))
    wanted = torch_rates(text, 12)
    assert schedule(11) == wanted[11]
    assert [schedule(step) for step in range(12)] == wanted


def test_the_warm_up_scales_the_rates() -> None:
    schedule = schedule_of(OptimConfig(lr=1.0, scheduler="StepLR(step_size=2, gamma=0.5)", warmup_steps=3))
    assert [schedule(step) for step in range(5)] == [0.25, 0.5, 0.375, 0.5, 0.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("StepLR(", "is not a scheduler of torch"),
        ("NoLR(gamma=1)", "is not a scheduler of torch"),
        ("StepLR(3)", "is not a scheduler of torch"),
        ("StepLR(step_size=__import__('os'))", "is not a scheduler of torch"),
        ("StepLR(gamma=0.5)", "StepLR cannot be created: .*step_size"),
        ("ReduceLROnPlateau", "depends on the metrics"),
        ("OneCycleLR(max_lr=1.0, total_steps=3)", "cycle_momentum=False"),
    ],
)
def test_a_scheduler_that_cannot_be_used_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        schedule_of(OptimConfig(scheduler=text))


def test_a_scheduler_that_ends_before_the_run_says_so() -> None:
    schedule = schedule_of(OptimConfig(scheduler="OneCycleLR(max_lr=1.0, total_steps=3, cycle_momentum=False)"))
    with pytest.raises(UsageError, match="OneCycleLR ends at step 4"):
        schedule(4)


def test_a_class_with_plain_arguments_becomes_a_key() -> None:
    assert describe_scheduler(lr_scheduler.StepLR, {"step_size": 3}) == "StepLR(step_size=3)"
    assert describe_scheduler(lr_scheduler.LambdaLR, {"lr_lambda": len}) is None

    class Own(lr_scheduler.StepLR):
        pass

    assert describe_scheduler(Own, {"step_size": 3}) is None
    assert TorchSchedule(OptimConfig(lr=1.0), Own, {"step_size": 1})(2) == pytest.approx(0.01)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_a_resumed_run_with_scheduler_and_amsgrad_equals_a_straight_one(tmp_path: Path, name: str) -> None:
    keys: dict[str, Any] = {
        "optim__scheduler": "CosineAnnealingWarmRestarts(T_0=4)",
        "optim__amsgrad": True,
        "optim__name": name,
    }
    straight = trained(tmp_path / "straight", train__steps=9, **keys)
    trained(tmp_path / "run", train__steps=5, optim__decay_steps=9, **keys)
    resumed = toy_trainer(tmp_path / "run", resume=True, train__steps=9)
    resumed.train()
    resumed.close()
    assert any("max_exp_avg_sq" in key for key in weights(resumed))
    wanted = weights(straight)
    assert weights(resumed).keys() == wanted.keys()
    assert [key for key, value in weights(resumed).items() if not torch.equal(value, wanted[key])] == []


def test_amsgrad_is_refused_for_other_optimizers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"amsgrad=true needs optim\.name=adam or adamw, not lion"):
        toy_trainer(tmp_path / "run", optim__name="lion", optim__amsgrad=True)
