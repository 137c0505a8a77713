"""`CompatTrainer`: base of the trainers with the keywords, attributes and methods of the original packages.

A compat trainer is a module that holds the user's model, and quintet's own trainer (`own`), which trains the parts of
that model. Keywords become keys by the tables in `tables/`; the original defaults apply to those that were left out.
`train_step()` does everything that is due after the step, as in the originals: it logs, validates, samples and saves.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from quintet.common.rank import RankInfo
from quintet.compat.items import SplitItems
from quintet.compat.model import CompatModel, new_seed, replace_folder
from quintet.compat.parts_trainer import PartsTrainer
from quintet.compat.rules import REQUIRED, OriginalTrainer
from quintet.compat.tables import TRAINERS
from quintet.compat.trainer_members import TrainerMembers
from quintet.compat.translation import (
    Translation,
    add_defaults,
    announce,
    check_required,
    in_original_words,
    positional_names,
    scale_to_processes,
    translate,
)
from quintet.compat.views import refuse_attribute
from quintet.config import OptimConfig
from quintet.errors import RunError, UsageError
from quintet.training.python_trainer import PythonTrainer
from quintet.training.run_folder import next_folder
from quintet.training.schedule import TorchSchedule, describe_scheduler
from quintet.training.trainer import Logs

LogFunction = Callable[[Any], None]


class CompatTrainer(TrainerMembers):
    """Base class. A subclass names quintet's trainer and adds the attributes of its original."""

    own_class: ClassVar[type[PythonTrainer]]
    results_attribute: ClassVar[str] = "results_folder"
    step_attribute: ClassVar[str] = "steps"
    """The buffer with the number of steps; empty if there is none."""
    checkpoint_name: ClassVar[str]
    """File name of a checkpoint in the original; {step} is the step, {number} the number of the checkpoint."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__name__ in TRAINERS:
            cls.__signature__ = _signature(TRAINERS[cls.__name__])  # type: ignore[attr-defined]

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__()
        frozen = {name: keywords.pop(name) for name in self.own_class.config_class.FROZEN_KEYS if name in keywords}
        translation = translate(self.original().name, keywords, positional)
        named = {**positional_names(self.original(), positional), **keywords}
        given = {name for name, value in named.items() if value is not None}
        arguments = translation.arguments
        model = arguments.pop("model", None)
        self.adapt(model, arguments, translation.overrides)
        self._set_split(arguments)
        always = self._complete(translation, given)
        announce(translation)
        self._set_attributes(named)
        self.own = self._build(model, arguments, translation.overrides, always, frozen)
        weakref.finalize(self, _release, self.own)  # scripts of the originals close nothing
        setattr(self, self.model_attribute, model if isinstance(model, nn.Module) else self.own.unwrapped_model)
        if isinstance(model, CompatModel):
            model._forget_training()  # the trainer has initialised its codebook
        self._show_step()
        self._is_built = True

    # --- construction -------------------------------------------------------------------------------------------

    @classmethod
    def original(cls) -> OriginalTrainer:
        return TRAINERS[cls.__name__]

    def adapt(self, model: Any, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        """Convert arguments that quintet's trainer does not have."""

    def own_members(self, model: Any) -> dict[str, Any]:
        """Members of quintet's trainer that differ for this original."""
        return {}

    def _complete(self, translation: Translation, given: set[str]) -> dict[str, Any]:
        """Add the original defaults, except to a resumed run; returns the keys that the original always has."""
        arguments, keys = translation.arguments, translation.overrides
        is_total = arguments.pop("split_batches", self._default("split_batches"))
        scale_to_processes(translation, bool(is_total), RankInfo.from_environment().world_size)
        self._set_schedule(arguments, keys)
        results = Path(arguments.pop("results", None) or self._default(self.results_attribute))
        if arguments.get("out") is None:
            arguments["out"] = self._run_folder(results, bool(arguments.get("resume")))
        if arguments.get("resume"):
            return {}
        if not arguments.get("preset"):
            check_required(translation)
        always = add_defaults(translation, given)
        # As the seed of the originals: torch.manual_seed makes a script reproducible.
        return {"train.seed": new_seed(), **always}

    def _default(self, keyword: str) -> Any:
        return next((rule.default for rule in self.original().rules if rule.keyword == keyword), None)

    def _run_folder(self, results: Path, resume: bool) -> Path:
        """A new run folder, or the newest one to resume."""
        recipe = self.original().recipe
        following = next_folder(recipe, results)
        number = int(following.name.rpartition("-")[2])
        if resume and number == 1:
            raise UsageError(f"{results} has no run to resume ({following} does not exist)")
        return results / f"{recipe}-{number - 1}" if resume else following

    def _set_split(self, arguments: dict[str, Any]) -> None:
        """Split a data set object as the original does, if the original splits it."""
        data = arguments.get("data")
        if hasattr(data, "__getitem__") and not isinstance(data, str) and self._default("valid_frac") is not None:
            arguments["data"] = SplitItems(data)

    def _set_schedule(self, arguments: dict[str, Any], keys: dict[str, Any]) -> None:
        """The key `optim.scheduler` of a scheduler class; a function of the step, if it cannot be written as text."""
        kind, options = arguments.pop("scheduler", None), dict(arguments.pop("scheduler_kwargs", None) or {})
        if kind is None:
            if options:
                raise UsageError(f"{self.original().name}: scheduler_kwargs needs a scheduler")
            return
        text = describe_scheduler(kind, options)
        if text is not None:
            keys["optim.scheduler"] = text
            return
        optim = OptimConfig(
            lr=keys.get("optim.lr", self._default("learning_rate")),
            warmup_steps=keys.get("optim.warmup_steps", self._default("warmup_steps")),
        )
        arguments["lr_schedule"] = TorchSchedule(optim, kind, options)

    def _build(
        self,
        model: Any,
        arguments: dict[str, Any],
        keys: dict[str, Any],
        always: dict[str, Any],
        frozen: dict[str, Any],
    ) -> PythonTrainer:
        parts = model.training_parts() if isinstance(model, CompatModel) else None
        classes = (PartsTrainer, self.own_class)
        body = {"always": always, "parts": parts, "__init__": PythonTrainer.__init__, **self.own_members(model)}
        kind: type[Any] = type(self.own_class.__name__, classes, body)
        with in_original_words(self.original(), keys.get("train.grad_accum_steps", 1)):
            own: PythonTrainer = kind(parts or model, config=keys, **arguments, **frozen)
        return own

    def _set_attributes(self, named: Mapping[str, Any]) -> None:
        """The values of the call and the original defaults, as attributes."""
        for rule in self.original().rules:
            value = named.get(rule.keyword, None if rule.default is REQUIRED else rule.default)
            if not hasattr(type(self), rule.keyword) and rule.argument != "model":
                object.__setattr__(self, rule.keyword, value)
        object.__setattr__(self, self.results_attribute, Path(getattr(self, self.results_attribute)))

    def __setattr__(self, name: str, value: Any) -> None:
        is_keyword = any(rule.keyword == name for rule in self.original().rules)
        if is_keyword and self.__dict__.get("_is_built"):
            raise UsageError(
                f"{self.original().name}.{name} cannot change after the trainer was built; pass {name}= to it"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        with suppress(AttributeError):
            return super().__getattr__(name)
        own = self.__dict__.get("own")
        if name == self.average_attribute and own is not None:
            return self._average_view()
        if own is not None and not name.startswith("_") and hasattr(own, name):
            return getattr(own, name)
        return refuse_attribute(type(self).__name__, name, "neither the original nor quintet's own trainer has it")

    # --- training -----------------------------------------------------------------------------------------------

    def train(self, log_fn: LogFunction | None = None) -> Any:  # type: ignore[override]
        """Train until the last step."""

        def log(logs: Logs) -> None:
            self._after_step()
            if log_fn is not None:
                log_fn(self.logs(logs))

        self.own.train(log)
        self._is_open = False
        self.print("training complete")

    def forward(self) -> None:
        self.train()

    def train_step(self) -> Any:
        """One optimizer step and everything that is due after it; returns the logs of the original."""
        own = self.own
        if not self._is_open:
            own.open_outputs()
            if own.step < own.config.train.steps:
                own.write_state("running")
            self._is_open = True
        try:
            logs = own.train_step()
        except (RuntimeError, MemoryError) as error:
            raise own._explain(error) or error from None
        logs.pop("stop_requested")
        is_last = own.step == own.config.train.steps
        logs.update(own.run_callbacks(final=is_last))
        if is_last:
            own.write_state("finished")
            self.close_outputs()
        self._after_step()
        return self.logs(logs)

    def _after_step(self) -> None:
        """Show the step, and the checkpoint of this step under its original name."""
        self._show_step()
        own = self.own
        number, rest = divmod(own.step, own.config.checkpoint.every)
        if own.is_main and own.saved_step == own.step and not rest:
            self._show_checkpoint(number)

    def _show_checkpoint(self, number: int) -> None:
        """Link the checkpoint of this step under its original name."""
        link = self._results / self.checkpoint_name.format(step=self.own.step, number=number)
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            folder = self.own.run.checkpoints / f"step-{self.own.step:08d}"
            link.symlink_to(os.path.relpath(folder, self._results))

    def _show_step(self) -> None:
        if self.step_attribute:
            self._buffers[self.step_attribute] = self.step_tensor(self.own.step)

    @staticmethod
    def step_tensor(step: int) -> Tensor:
        """The buffer of the step, as the original has it."""
        return torch.tensor([float(step)])

    @property
    def _results(self) -> Path:
        return self.own.run.folder.parent

    def logs(self, logs: Logs) -> Any:
        """The logs of a step as the original has them."""
        raise NotImplementedError

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save(self, path: Any, overwrite: bool = True) -> None:
        """Write a checkpoint to the folder `path`, which may exist if quintet wrote it."""
        own, folder = self.own, Path(path)
        if own.engine.is_sharded:
            raise UsageError("save(path) cannot write the shards of engine.fsdp; use the checkpoints of the run folder")
        if not overwrite and folder.exists():
            raise UsageError(f"{folder} exists already; pass overwrite=True to replace it")
        if own.is_main:
            try:
                replace_folder(folder, own.state.contents(own.engine.world_size, own.splits.fingerprint))
            except OSError as error:
                raise RunError(f"cannot write {folder}: {error.strerror}") from None
        own.wait()

    def load(self, path: Any, restore_optimizer: bool = True) -> None:
        """Continue from a folder that `save` wrote, or from a checkpoint of a run; a file is never opened."""
        self.own.load(Path(path), restore_optimizer)
        self._averaged = None
        self._show_step()


def number(logs: Logs, name: str) -> float:
    """A metric of the step as a number; 0 if the step has none."""
    value = logs.get(name)
    return 0.0 if value is None else float(value)


def _release(own: PythonTrainer) -> None:
    """End the data workers and give up the run folder."""
    own.close_outputs()
    own.run.close()


def _signature(original: OriginalTrainer) -> inspect.Signature:
    """For help() and notebooks: the signature of the original, and quintet's own options."""
    parameters = []
    for number, rule in enumerate(original.rules):
        by_position = number < original.positional
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_position else inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if rule.default is REQUIRED else rule.default
        parameters.append(inspect.Parameter(rule.keyword, kind, default=default))
    parameters.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)
