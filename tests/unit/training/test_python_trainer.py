"""The trainers of Python: what is asked of a call, and what a resumed run keeps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field
from quintet.pipelines.frozen import FrozenModel

from quintet.common.weights.checkpoint import Contents
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.training.python_trainer import PythonTrainer
from quintet.training.run_folder import Run
from quintet.training.task import Task
from unit.training.toy import OPENED, QUIET, Net, ToyConfig, ToyModelConfig, ToyTask, points


class GivenNet(Net):
    """A network that knows its keys, as do those that people hand over."""

    def __init__(self, **keys: Any) -> None:
        config = ToyModelConfig(**keys)
        super().__init__(config.width, config.dropout)
        self.config = config


class LinkedConfig(ToyConfig):
    LINKS: ClassVar = ("below",)
    PRESETS: ClassVar = {"debug": {"train.steps": 3}}
    below: str | None = Field(None, description="What it stands on.")
    below_hash: str | None = Field(None, description="Of its weights.")


class GivenTask(ToyTask):
    def __init__(self, config: LinkedConfig, net: GivenNet | None = None, below: FrozenModel | None = None) -> None:
        super().__init__(config)
        self.links = {} if below is None else {"below": below}
        if net is not None:
            self.net = self.modules["net"] = net


class ToyTrainer(PythonTrainer):
    config_class = LinkedConfig
    task_class = GivenTask
    model_class = GivenNet

    @classmethod
    def splits_of(cls, recipe: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        return points(len(validation or "1234"), num=len(data))


class FolderTrainer(PythonTrainer):
    """Needs no model but a link, and takes no data set objects."""

    config_class = LinkedConfig
    task_class = GivenTask
    model_class = GivenNet
    needs = ("below",)


def made(out: Path, model: Any = None, *, data: Any = range(24), **keywords: Any) -> ToyTrainer:
    torch.manual_seed(1)
    keys = {**QUIET, **keywords.pop("config", {})}
    for name in ("steps", "batch_size", "lr"):
        if name in keywords or keywords.get("resume"):
            keys.pop({"steps": "train.steps", "batch_size": "train.batch_size", "lr": "optim.lr"}[name])
    trainer = ToyTrainer(model or GivenNet(), data=data, out=out, config=keys, **keywords)
    OPENED.append(trainer.run)
    return trainer


def trained(*arguments: Any, **keywords: Any) -> ToyTrainer:
    trainer = made(*arguments, **keywords)
    trainer.train()
    trainer.close()
    return trainer


@pytest.fixture(autouse=True)
def no_notice() -> Iterator[None]:
    """A trainer that replaces no other has no keywords to translate."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_the_model_by_position_by_name_and_by_the_name_of_its_module(tmp_path: Path) -> None:
    for number, given in enumerate(("position", "model", "net")):
        net = GivenNet(width=4)
        words: dict[str, Any] = {} if given == "position" else {given: net}
        trainer = ToyTrainer(
            *([net] if given == "position" else []), data=range(24), out=tmp_path / str(number), config=QUIET, **words
        )
        trainer.close()
        assert trainer.unwrapped_model is net
        assert trainer.config.model.width == 4
        assert trainer.ema_model is not net
        assert torch.equal(trainer.ema_model.state_dict()["head.weight"], net.head.weight)


def test_a_resumed_run_keeps_what_is_not_named(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=4, lr=0.02, config={"optim.horizon": 8, "checkpoint.every": 2, "eval.every": 3})
    again = trained(tmp_path / "run", resume=True, steps=8)
    assert again.step == 8
    assert (again.config.optim.lr, again.config.checkpoint.every, again.config.eval.every) == (0.02, 1000, 1000)
    plain = ToyTrainer(GivenNet(), data=range(24), out=tmp_path / "run", resume=True)
    plain.close()
    assert (plain.step, plain.config.train.steps, plain.config.optim.lr) == (8, 8, 0.02)

    straight = trained(tmp_path / "straight", steps=8, lr=0.02)
    for name, value in straight.unwrapped_model.state_dict().items():
        assert torch.equal(again.unwrapped_model.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"lr": 0.5}, "optim.lr: 0.01 -> 0.5"),
        ({"model": GivenNet(width=9)}, "model.width: 6 -> 9"),
        ({"preset": "debug"}, "preset: None -> 'debug'"),
        ({"config": {"optim.betas": [0.5, 0.6]}}, "optim.betas"),
    ],
)
def test_a_resumed_run_refuses_what_would_change_it(tmp_path: Path, words: dict[str, Any], named: str) -> None:
    trained(tmp_path / "run", steps=2)
    with pytest.raises(UsageError, match=f"cannot change {named}"):
        ToyTrainer(**{"model": GivenNet(), "data": range(24), "out": tmp_path / "run", "resume": True, **words})


def test_what_stands_below_may_have_moved_since(tmp_path: Path) -> None:
    assert made(tmp_path / "first", below=link("here")).config.below == "here"
    OPENED[-1].close()
    again = made(tmp_path / "first", below=link("elsewhere"), resume=True)
    assert again.config.below == "here"
    assert again.task.links["below"].reference == "elsewhere"


def link(reference: str) -> FrozenModel:
    recipe = ToyTask(ToyConfig())
    return FrozenModel(recipe, dict(recipe.modules), reference, Contents())


def test_what_a_call_lacks_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for words, sentence in (
        ({}, "ToyTrainer needs a model to train, a quintet.GivenNet"),
        ({"model": Net(6, 0.0)}, "ToyTrainer trains a quintet.GivenNet, not a Net"),
        ({"model": GivenNet()}, "ToyTrainer needs data"),
        ({"model": GivenNet(), "data": range(9), "validation": "folder"}, "beside a folder comes a folder"),
        ({"model": GivenNet(), "data": "folder", "validation": range(9)}, "beside a folder comes a folder"),
        ({"model": GivenNet(), "data": range(9), "below": "runs/tok"}, r"below=quintet.runs.open_link\('runs/tok'\)"),
        ({"model": GivenNet(), "data": range(9), "config": {"init": "runs/a"}}, "load the weights into the model"),
        ({"model": GivenNet(), "data": range(9), "config": {"model.width": 7}}, r"keys of model\.\* are those of the"),
        ({"model": GivenNet(), "data": range(9), "step": 7}, "no keyword 'step'; did you mean 'steps'"),
        ({"model": GivenNet(), "data": range(9), "preset": "tiny"}, "unknown preset 'tiny'"),
        ({"model": GivenNet(), "data": range(9), "resume": True}, "does not exist"),
    ):
        with pytest.raises(UsageError, match=sentence):
            ToyTrainer(out=out, **words)
    with pytest.raises(UsageError, match=r"FolderTrainer needs a below: below=quintet\.runs\.open_link"):
        FolderTrainer(data=range(24), out=out)
    with pytest.raises(UsageError, match="FolderTrainer takes a folder of files as data, not a range"):
        FolderTrainer(below=link("here"), data=range(24), out=out)
    assert not out.exists()


def test_paths_become_keys_and_objects_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_path = FolderTrainer(below=link("here"), data="files", validation=Path("more"), out="run", config=QUIET)
    by_path.close()
    assert by_path.config.data.path == str(tmp_path / "files")
    assert by_path.config.data.validation_path == str(tmp_path / "more")
    assert made(tmp_path / "objects").config.data.path is None
    assert Run.open(tmp_path / "objects").folder == tmp_path / "objects"


def test_what_the_recipe_makes_follows_the_seed(tmp_path: Path) -> None:
    critics = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(100 + number)
        keys = {**QUIET, "train.seed": seed}
        trainer = ToyTrainer(GivenNet(critic=True), data=range(24), out=tmp_path / str(number), config=keys)
        trainer.close()
        critics.append(trainer.task.modules["critic"].state_dict()["weight"])
    assert torch.equal(critics[0], critics[1])
    assert not torch.equal(critics[0], critics[2])


def test_data_behind_an_address_is_asked_for_by_that_address() -> None:
    assert PythonTrainer._paths("s3://bucket/set", "s3://bucket/other") == {
        "data.path": "s3://bucket/set",
        "data.validation_path": "s3://bucket/other",
    }
