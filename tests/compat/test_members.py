"""Every public method and attribute of the original trainers works or is refused in one sentence."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from compat.trainers import MAKERS
from quintet.compat import CompatibilityNotice
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.members import MEMBERS, Member
from quintet.compat.views import NoAttributeError
from quintet.errors import QuintetError, UsageError

LONG = ("train()", "train(log_fn", "trainer()", "forward()")
"""Members that end the training: each gets a trainer of its own."""


def outcome(member: Member, trainer: Any, path: Path) -> str:
    """The message of a refusal, or an empty text. Any other error is a failure of the test."""
    try:
        eval(member.use, {"trainer": trainer, "path": str(path), "torch": torch, "open": open})
    except (QuintetError, NoAttributeError) as error:
        return str(error)
    return ""


def is_missing(package: str) -> bool:
    if package == "cuda":
        return not torch.cuda.is_available()
    return bool(package) and importlib.util.find_spec(package) is None


@pytest.fixture(autouse=True)
def no_notices() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatibilityNotice)
        yield


@pytest.mark.parametrize("name", TRAINERS)
def test_every_member_has_the_outcome_of_the_table(name: str, tmp_path: Path) -> None:
    trainer = MAKERS[name](tmp_path)
    for number, member in enumerate(MEMBERS[name]):
        if any(part in member.use for part in LONG):
            continue
        message = outcome(member, trainer, tmp_path / f"saved-{number}.pt")
        assert "\n" not in message
        if is_missing(member.needs):
            assert message, member.use
        elif member.refused:
            assert member.refused in message, member.use
        else:
            assert not message, f"{member.use}: {message}"


@pytest.mark.parametrize("name", TRAINERS)
def test_whole_trainings_by_every_method(name: str, tmp_path: Path) -> None:
    steps = {"train_num_steps" if name == "PhenakiTrainer" else "num_train_steps": 2}
    for number, member in enumerate(MEMBERS[name]):
        if any(part in member.use for part in LONG):
            trainer = MAKERS[name](tmp_path, **steps)
            assert outcome(member, trainer, tmp_path / str(number)) == ""
            assert trainer.own.step == 2, member.use


@pytest.mark.parametrize("name", TRAINERS)
def test_a_value_of_the_call_cannot_be_changed_afterwards(name: str, tmp_path: Path) -> None:
    trainer = MAKERS[name](tmp_path)
    with pytest.raises(UsageError, match="cannot change after the trainer was built"):
        trainer.max_grad_norm = 3.0
    assert not hasattr(trainer, "no_such_attribute")
    with pytest.raises(NoAttributeError, match="has no 'no_such_attribute'"):
        _ = trainer.no_such_attribute


def test_every_trainer_has_its_table() -> None:
    assert [*MEMBERS] == [*TRAINERS] == [*MAKERS]
    assert sum(map(len, MEMBERS.values())) >= 143
