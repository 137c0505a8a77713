"""The Python trainers: required arguments, and the configuration of a resumed run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

import pytest
import torch
from pydantic import Field
from torch import nn

from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.training.options import TrainerOptions
from quintet.training.python_trainer import PythonTrainer
from quintet.training.run_folder import Run
from quintet.training.task import Task
from unit.training.toy import OPENED, QUIET, Net, ToyConfig, ToyModelConfig, ToyPipeline, ToyTask, points


class GivenNet(Net):
    """A network that knows its keys, as do those that people hand over."""

    def __init__(self, **keys: Any) -> None:
        config = ToyModelConfig(**keys)
        super().__init__(config.width, config.dropout)
        self.config = config


class LinkedConfig(ToyConfig):
    FROZEN_KEYS: ClassVar = ("below",)
    PRESETS: ClassVar = {"debug": {"train.steps": 3}}
    below: str | None = Field(None, description="Frozen model of the toy recipe.")
    below_hash: str | None = Field(None, description="Of its weights.")


class GivenTask(ToyTask):
    def __init__(
        self,
        config: LinkedConfig,
        frozen: Mapping[str, Pipeline[Any]] | None = None,
        modules: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(config)
        self.frozen = dict(frozen or {})
        if modules and "net" in modules:
            self.net = self.modules["net"] = modules["net"]


class FolderTrainer(PythonTrainer):
    """Needs no model but a link, and takes no data set objects."""

    config_class = LinkedConfig
    task_class = GivenTask
    model_class = GivenNet
    needs = ("below",)

    def __init__(
        self, model: GivenNet | None = None, *, below: Pipeline[Any] | None = None, **options: Unpack[TrainerOptions]
    ) -> None:
        super().__init__(model, below=below, **options)


class ToyTrainer(FolderTrainer):
    needs = ("model",)

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        return points(len(validation or "1234"), num=len(data))


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


def test_gradients_that_a_model_comes_with_are_not_trained_on(tmp_path: Path) -> None:
    seen = []
    for name in ("without", "with"):
        torch.manual_seed(0)
        net = GivenNet(width=4)
        for parameter in net.parameters() if name == "with" else ():
            parameter.grad = torch.ones_like(parameter)
        trainer = ToyTrainer(net, data=range(24), out=tmp_path / name, config=QUIET)
        trainer.train_step()
        trainer.close()
        seen.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    assert torch.equal(*seen)


def test_the_model_by_position_and_by_name(tmp_path: Path) -> None:
    for given in ("position", "name"):
        net = GivenNet(width=4)
        options: Any = {"data": range(24), "out": tmp_path / given, "config": QUIET}
        trainer = ToyTrainer(net, **options) if given == "position" else ToyTrainer(model=net, **options)
        trainer.close()
        assert trainer.unwrapped_model is net
        assert trainer.config.model.width == 4
        assert trainer.ema_model is not net
        assert torch.equal(trainer.ema_model.state_dict()["head.weight"], net.head.weight)


def test_options_become_keys(tmp_path: Path) -> None:
    quiet = {key: value for key, value in QUIET.items() if key not in {"train.steps", "train.batch_size", "optim.lr"}}
    trainer = ToyTrainer(
        GivenNet(),
        data=range(24),
        out=tmp_path / "run",
        steps=1e1,  # type: ignore[arg-type]
        batch_size=4,
        grad_accum_steps=2,
        lr=1,
        seed=3,
        num_workers=None,
        lr_schedule=lambda step: 0.5,
        config={**quiet, "optim": {"schedule": "constant"}, "train.steps": 10},
    )
    trainer.close()
    config = trainer.config
    assert (config.train.steps, config.train.batch_size, config.train.grad_accum_steps) == (10, 4, 2)
    assert (config.optim.lr, config.train.seed, config.optim.schedule) == (1.0, 3, "constant")
    assert trainer.lr_schedule(7) == 0.5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 0}, "steps=0 is invalid; it sets train.steps, which takes an integer of at least 1, for example"),
        ({"steps": True}, "steps=True is invalid"),
        ({"batch_size": "16"}, "batch_size='16' is invalid; it sets train.batch_size"),
        ({"grad_accum_steps": 1.5}, "grad_accum_steps=1.5 is invalid; it sets train.grad_accum_steps"),
        ({"lr": float("nan")}, "lr=nan is invalid; it sets optim.lr, which takes a number above 0, for example lr="),
        ({"seed": -1}, "seed=-1 is invalid; it sets train.seed"),
        ({"num_workers": -1}, "num_workers=-1 is invalid; it sets data.num_workers"),
        ({"resume": "yes"}, "resume='yes' is invalid; it sets the argument resume, which takes True or False"),
        ({"lr_schedule": 3e-4}, "lr_schedule=0.0003 is invalid; it sets the argument lr_schedule"),
        ({"config": "train.steps=3"}, "config='train.steps=3' is invalid; it takes a dictionary"),
        ({"steps": 10, "config": {"train": {"steps": 20}}}, "steps and config both set train.steps; use one of them"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_value_names_option_key_and_fix(tmp_path: Path, options: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        ToyTrainer(GivenNet(), **{"data": range(24), "out": tmp_path / "run", **options})
    assert str(caught.value).startswith(f"ToyTrainer: {sentence}")
    assert not (tmp_path / "run").exists()


def test_an_unknown_keyword_is_a_type_error_that_names_the_nearest() -> None:
    for name, near in (("step", "steps"), ("belov", "below"), ("learning_rate", None), ("net", None)):
        with pytest.raises(TypeError) as caught:
            ToyTrainer(GivenNet(), **{"data": range(24), name: 1})  # type: ignore[arg-type]
        hint = f"; did you mean '{near}'?" if near else ""
        assert str(caught.value) == f"ToyTrainer() got an unexpected keyword argument '{name}'{hint}"


def test_the_signature_names_every_option() -> None:
    parameters = inspect.signature(ToyTrainer).parameters
    assert list(parameters)[:4] == ["model", "below", "data", "validation"]
    assert {"steps", "batch_size", "lr", "config"} <= set(parameters)
    assert parameters["data"].default is inspect.Parameter.empty
    assert parameters["steps"].annotation == int | None


def test_a_resumed_run_keeps_keys_that_are_not_passed(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=4, lr=0.02, config={"optim.decay_steps": 8, "checkpoint.every": 2, "eval.every": 3})
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
def test_a_resumed_run_refuses_keys_that_would_change_it(tmp_path: Path, words: dict[str, Any], named: str) -> None:
    trained(tmp_path / "run", steps=2)
    with pytest.raises(UsageError, match=f"cannot change {named}"):
        ToyTrainer(**{"model": GivenNet(), "data": range(24), "out": tmp_path / "run", "resume": True, **words})


def test_frozen_models_may_have_moved_since(tmp_path: Path) -> None:
    assert made(tmp_path / "first", below=link("here")).config.below == "here"
    OPENED[-1].close()
    again = made(tmp_path / "first", below=link("elsewhere"), resume=True)
    assert again.config.below == "here"
    assert again.task.frozen["below"].reference == "elsewhere"


def link(reference: str) -> Pipeline[Any]:
    pipeline = ToyPipeline(ToyConfig(), {"net": GivenNet()})
    pipeline.reference = reference
    return pipeline


def test_a_missing_argument_is_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for words, sentence in (
        ({}, "ToyTrainer needs a model to train, a quintet.GivenNet"),
        ({"model": Net(6, 0.0)}, "ToyTrainer trains a quintet.GivenNet, not a Net"),
        ({"model": GivenNet()}, "ToyTrainer needs data"),
        (
            {"model": GivenNet(), "data": range(9), "validation": "folder"},
            "must both be folders or both be data set objects",
        ),
        (
            {"model": GivenNet(), "data": "folder", "validation": range(9)},
            "must both be folders or both be data set objects",
        ),
        (
            {"model": GivenNet(), "data": range(9), "below": "runs/tok"},
            r"runs/tok does not exist; pass the folder of a run",
        ),
        ({"model": GivenNet(), "data": range(9), "config": {"init": "runs/a"}}, "pass a model with loaded weights"),
        (
            {"model": GivenNet(), "data": range(9), "config": {"model.width": 7}},
            r"keys of model\.\* differ from those of the",
        ),
        ({"model": GivenNet(), "data": range(9), "preset": "tiny"}, "unknown preset 'tiny'"),
        ({"model": GivenNet(), "data": range(9), "resume": True}, "does not exist"),
    ):
        with pytest.raises(UsageError, match=sentence):
            ToyTrainer(out=out, **words)
    with pytest.raises(
        UsageError, match=r"FolderTrainer needs a below: pass below= a run, an exported folder or a pipeline"
    ):
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


def test_new_modules_follow_the_seed(tmp_path: Path) -> None:
    critics = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(100 + number)
        keys = {**QUIET, "train.seed": seed}
        trainer = ToyTrainer(GivenNet(critic=True), data=range(24), out=tmp_path / str(number), config=keys)
        trainer.close()
        critics.append(trainer.task.modules["critic"].state_dict()["weight"])
    assert torch.equal(critics[0], critics[1])
    assert not torch.equal(critics[0], critics[2])


def test_data_at_a_url_keeps_its_url() -> None:
    assert PythonTrainer._paths("s3://bucket/set", "s3://bucket/other") == {
        "data.path": "s3://bucket/set",
        "data.validation_path": "s3://bucket/other",
    }
