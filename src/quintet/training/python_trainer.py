"""`PythonTrainer`: the loop bound to a recipe, for use in Python. The public `…Trainer` classes are built on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from quintet.config import RunConfig, build, data_path, refuse_changes
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline
from quintet.training.options import POSITIVE, Kind, expanded_signature, keys_from, known_options
from quintet.training.prepare import frozen_to_device
from quintet.training.run_folder import Run, next_folder
from quintet.training.task import Task
from quintet.training.trainer import Trainer


class PythonTrainer(Trainer):
    """`…Trainer(model, data=…, out=…, steps=…).train()`.

    A family names its three classes. Its constructor says which model and frozen models it takes, so that editors and
    type checkers know.
    """

    config_class: ClassVar[type[RunConfig]]
    task_class: ClassVar[type[Task[Any]]]
    model_class: ClassVar[type[nn.Module]]
    needs: ClassVar[tuple[str, ...]] = ("model",)
    """Of the model and the links, those that must be given."""
    batch_sizes: ClassVar[Kind] = POSITIVE
    """The possible values of `batch_size`."""

    def __init_subclass__(cls) -> None:
        # For help() and notebooks; editors and type checkers read Unpack themselves.
        cls.__signature__ = expanded_signature(cls.__init__)  # type: ignore[attr-defined]

    def __init__(self, model: Any = None, **options: Any) -> None:
        """`options` are those of `TrainerOptions`, and frozen models under their names in `FROZEN_KEYS`."""
        trainer = type(self).__name__
        links = {name: options.pop(name) for name in self.config_class.FROZEN_KEYS if name in options}
        known = known_options(trainer, options, self.config_class.FROZEN_KEYS)
        asked = keys_from(trainer, known, self.batch_sizes)
        handed = model
        model, inside, beside = self.split_model(handed)
        opened = {name: open_pipeline(link) if _is_folder(link) else link for name, link in links.items()}
        links = {**inside, **{name: link for name, link in opened.items() if link is not None}}
        self._check_given(model, links)
        links = {name: link.freeze() for name, link in links.items()}
        resume = bool(known.get("resume"))
        out = Path(known.get("out") or next_folder(self.task_class.pipeline_class.recipe))
        data, validation = known.get("data"), known.get("validation")
        keys = {**self.keys_of(handed), **asked, **self._paths(data, validation)}
        if "init" in keys:
            raise UsageError("in Python, load the weights into the model that you hand over, instead of the key `init`")
        if model is not None:
            keys = {"model": model.config.model_dump(mode="json"), **keys}
        preset = known.get("preset")
        if resume:
            run = Run.open(out)
            config = _continued(self.config_class, run, {**keys, **({"preset": preset} if preset else {})})
        else:
            references = {name: link.reference for name, link in links.items()}
            config = build(self.config_class, preset=preset, overrides={**references, **keys})
            run = Run.new(out, config.FROZEN_KEYS)
        if model is not None and config.model != model.config:
            raise UsageError(f"{trainer}: the keys of model.* are those of the model; build it with them")
        torch.manual_seed(config.train.seed)  # what the recipe makes beside the model
        given = {**({} if model is None else {self.exported(): model}), **beside}
        task = self.task_class(config, links, given)
        splits = None
        if not _is_folder(data):
            frozen_to_device(task)
            splits = self.splits_of(task, data, validation, known.get("declared"))
        super().__init__(task, run, splits=splits, resume=resume, lr_schedule=known.get("lr_schedule"))

    @classmethod
    def split_model(cls, model: Any) -> tuple[Any, dict[str, Pipeline[Any]], dict[str, nn.Module]]:
        """Of what was handed over as the model: what is trained, the links in it, and what else the recipe takes."""
        return model, {}, {}

    @classmethod
    def exported(cls) -> str:
        """The module that is the model."""
        return cls.task_class.pipeline_class.exported

    @classmethod
    def keys_of(cls, model: Any) -> dict[str, Any]:
        """The keys that follow from what was handed over as the model."""
        return {}

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        """A data set object, and perhaps one to validate on; `declared` names the values of its tuples."""
        raise UsageError(f"{cls.__name__} takes a folder of files as data, not a {type(data).__name__}")

    @property
    def unwrapped_model(self) -> nn.Module:
        return self.task.modules[self.exported()]

    @property
    def ema_model(self) -> nn.Module:
        """The averaged model; the live one where averaging is off."""
        return self.state.averaged_modules()[self.exported()]

    @classmethod
    def _check_given(cls, model: Any, links: Mapping[str, Any]) -> None:
        wanted = cls.model_class.__name__
        if model is None and "model" in cls.needs:
            raise UsageError(f"{cls.__name__} needs a model to train, a quintet.{wanted}")
        if model is not None and not isinstance(model, cls.model_class):
            raise UsageError(f"{cls.__name__} trains a quintet.{wanted}, not a {type(model).__name__}")
        for name in cls.config_class.FROZEN_KEYS:
            if name in cls.needs and name not in links:
                raise UsageError(f"{cls.__name__} needs a {name}: {name}=RUN, an exported folder, or a pipeline")
            if name in links and not isinstance(links[name], Pipeline):
                raise UsageError(
                    f"{cls.__name__} takes a run, an exported folder or a pipeline as {name}, not a "
                    f"{type(links[name]).__name__}"
                )

    @classmethod
    def _paths(cls, data: Any, validation: Any) -> dict[str, Any]:
        if data is None:
            raise UsageError(f"{cls.__name__} needs data, such as a folder of files")
        if validation is not None and _is_folder(validation) != _is_folder(data):
            raise UsageError("a validation set comes beside a data set object; beside a folder comes a folder")
        if not _is_folder(data):
            return {"data.path": None}
        beside = {} if validation is None else {"data.validation_path": data_path(validation)}
        return {"data.path": data_path(data), **beside}


def _is_folder(data: Any) -> bool:
    return isinstance(data, (str, Path))


def _continued(schema: type[RunConfig], run: Run, keys: Mapping[str, Any]) -> RunConfig:
    """The run's own configuration, changed by what was asked for where a resumed run may change.

    Where the links lay then stays as it was: their hashes say whether they are the same."""
    saved = build(schema, file=run.config_file)
    changed = saved.changed(keys)
    refuse_changes(saved, changed)
    return changed
