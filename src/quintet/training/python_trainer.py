"""`PythonTrainer`: base class of the public `…Trainer` classes, which train a recipe from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from quintet.common.logging import say_once
from quintet.common.memory import building
from quintet.common.rank import has_launcher
from quintet.common.weights import checkpoint
from quintet.config import RunConfig, build, data_path, refuse_changes
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline
from quintet.training.edits import edited_keys
from quintet.training.options import POSITIVE, Kind, expanded_signature, keys_from, known_options
from quintet.training.prepare import extend_schedule, frozen_to_device, resumed_config
from quintet.training.run_folder import Run, next_folder
from quintet.training.task import Task
from quintet.training.trainer import Trainer


class PythonTrainer(Trainer):
    """`…Trainer(model, data=…, out=…, steps=…).train()`.

    A family sets its three classes. Its constructor declares the model and the frozen models that it takes, for editors
    and type checkers.
    """

    config_class: ClassVar[type[RunConfig]]
    task_class: ClassVar[type[Task[Any]]]
    model_class: ClassVar[type[nn.Module]]
    needs: ClassVar[tuple[str, ...]] = ("model",)
    """Required arguments: `model` and the names of frozen models."""
    batch_sizes: ClassVar[Kind] = POSITIVE
    """The valid values of `batch_size`."""

    def __init_subclass__(cls) -> None:
        # For help() and notebooks; editors and type checkers understand Unpack.
        cls.__signature__ = expanded_signature(cls.__init__)  # type: ignore[attr-defined]

    def __init__(self, model: Any = None, **options: Any) -> None:
        """`options` are those of `TrainerOptions`, and the frozen models by their names in `FROZEN_KEYS`."""
        trainer = type(self).__name__
        frozen = {name: options.pop(name) for name in self.config_class.FROZEN_KEYS if name in options}
        known = known_options(trainer, options, self.config_class.FROZEN_KEYS)
        option_keys = keys_from(trainer, known, self.batch_sizes)
        argument = model
        model, contained, modules = self.split_model(argument)
        opened = {name: open_pipeline(each) if _is_path(each) else each for name, each in frozen.items()}
        frozen = {**contained, **{name: pipeline for name, pipeline in opened.items() if pipeline is not None}}
        self._check_arguments(model, frozen)
        frozen = {name: pipeline.freeze() for name, pipeline in frozen.items()}
        resume = bool(known.get("resume"))
        out = Path(known.get("out") or next_folder(self.task_class.pipeline_class.recipe))
        data, validation = known.get("data"), known.get("validation")
        keys = {**self.keys_of(argument), **option_keys, **self._paths(data, validation)}
        if "init" in keys:
            raise UsageError("the key `init` is for the command line; in Python, pass a model with loaded weights")
        if model is not None:
            keys = {"model": model.config.model_dump(mode="json"), **keys}
        preset = known.get("preset")
        if resume:
            run = Run.open(out)
            config = _resumed_config(self.config_class, run, {**keys, **({"preset": preset} if preset else {})})
        else:
            references = {name: pipeline.reference for name, pipeline in frozen.items()}
            config = build(self.config_class, preset=preset, overrides={**references, **keys})
            run = Run.new(out, config.FROZEN_KEYS)
        if config.train.lora is not None and model is None:
            raise UsageError(f"train.lora={config.train.lora} adapts trained weights: pass a model that has them")
        _check_launch(config.engine.launch, resume)
        if model is not None and config.model != model.config:
            raise UsageError(
                f"{trainer}: keys of model.* differ from those of the model; set them when you build the model"
            )
        torch.manual_seed(config.train.seed)  # for the modules that the task builds
        if model is not None:
            modules = {self.exported(): model, **modules}
        with building(config):
            task = self.task_class(config, frozen, modules)
        splits = None
        if not _is_path(data):
            frozen_to_device(task)
            splits = self.splits_of(task, data, validation, known.get("declared"))
        super().__init__(task, run, splits=splits, resume=resume, lr_schedule=known.get("lr_schedule"))

    @classmethod
    def split_model(cls, model: Any) -> tuple[Any, dict[str, Pipeline[Any]], dict[str, nn.Module]]:
        """Split the `model` argument into the trained model, its frozen pipelines, and further modules by name."""
        return model, {}, {}

    @classmethod
    def exported(cls) -> str:
        """The name of the module that is the model."""
        return cls.task_class.pipeline_class.exported

    @classmethod
    def keys_of(cls, model: Any) -> dict[str, Any]:
        """The keys that follow from the `model` argument."""
        return {}

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        """Splits from a data set object and an optional validation set; `declared` names the elements of its tuples."""
        raise UsageError(f"{cls.__name__} takes a folder of files as data, not a {type(data).__name__}")

    @property
    def unwrapped_model(self) -> nn.Module:
        return self.task.modules[self.exported()]

    @property
    def ema_model(self) -> nn.Module:
        """The EMA model; the live model if EMA is off."""
        return self.state.averaged_modules()[self.exported()]

    @classmethod
    def _check_arguments(cls, model: Any, frozen: Mapping[str, Any]) -> None:
        expected = cls.model_class.__name__
        if model is None and "model" in cls.needs:
            raise UsageError(f"{cls.__name__} needs a model to train, a quintet.{expected}")
        if model is not None and not isinstance(model, cls.model_class):
            raise UsageError(f"{cls.__name__} trains a quintet.{expected}, not a {type(model).__name__}")
        for name in cls.config_class.FROZEN_KEYS:
            if name in cls.needs and name not in frozen:
                raise UsageError(f"{cls.__name__} needs a {name}: pass {name}= a run, an exported folder or a pipeline")
            if name in frozen and not isinstance(frozen[name], Pipeline):
                raise UsageError(
                    f"{cls.__name__} takes a run, an exported folder or a pipeline as {name}, not a "
                    f"{type(frozen[name]).__name__}"
                )

    @classmethod
    def _paths(cls, data: Any, validation: Any) -> dict[str, Any]:
        if data is None:
            raise UsageError(f"{cls.__name__} needs data, such as a folder of files")
        if validation is not None and _is_path(validation) != _is_path(data):
            raise UsageError("data and validation must both be folders or both be data set objects")
        if not _is_path(data):
            return {"data.path": None}
        validation_keys = {} if validation is None else {"data.validation_path": data_path(validation)}
        return {"data.path": data_path(data), **validation_keys}


def _is_path(data: Any) -> bool:
    return isinstance(data, (str, Path))


def _check_launch(launch: int | str, resume: bool) -> None:
    """`engine.launch` starts the command line again; a script of Python cannot be started again from here."""
    if launch == 1:
        return
    if not resume and not has_launcher():
        raise UsageError(
            f"engine.launch={launch} works from the command line (`quintet train`); in Python, remove it and start the "
            "script with `torchrun --nproc_per_node N`"
        )
    say_once("engine.launch", f"engine.launch={launch} is ignored: it works from the command line")


def _resumed_config(schema: type[RunConfig], run: Run, keys: Mapping[str, Any]) -> RunConfig:
    """The saved configuration of a run, with the keys that a resumed run may change.

    The references to frozen models stay as saved; their hashes show whether they are the same models."""
    saved = build(schema, file=run.config_file)
    edited_keys(run, saved)
    changed = resumed_config(saved, keys)
    refuse_changes(saved, changed)
    steps = checkpoint.steps(run.checkpoints)
    return extend_schedule(saved, changed, checkpoint.step_of(steps[-1]) if steps else 0)
