"""`CompatTrainer`: base of the trainers with the keywords, attributes and methods of the original packages.

A compat trainer is a module that holds the user's model, and quintet's own trainer (`own`), which trains the parts of
that model. Keywords become keys by the tables in `tables/`; the original defaults apply to those that were left out.
`train_step()` does everything that is due after the step, as in the originals: it logs, validates, samples and saves.
"""

from __future__ import annotations

import copy
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from quintet.common.rank import RankInfo
from quintet.compat.items import cycle, items_of, loader_of, stack_shortest
from quintet.compat.model import CompatModel, TrainingParts, new_seed, replace_folder
from quintet.compat.parts_trainer import PartsTrainer
from quintet.compat.rules import REQUIRED, OriginalTrainer
from quintet.compat.tables import TRAINERS
from quintet.compat.translation import (
    Translation,
    add_defaults,
    announce,
    check_required,
    positional_names,
    scale_to_processes,
    translate,
)
from quintet.compat.views import AcceleratorView, AverageView, as_floats, named_project, refuse_attribute
from quintet.config import OptimConfig
from quintet.errors import RunError, UsageError
from quintet.training.metrics import check_trackers
from quintet.training.python_trainer import PythonTrainer
from quintet.training.run_folder import next_folder
from quintet.training.schedule import TorchSchedule, describe_scheduler
from quintet.training.trainer import Logs

LogFunction = Callable[[Any], None]


class CompatTrainer(nn.Module):
    """Base class. A subclass names quintet's trainer and adds the attributes of its original."""

    own_class: ClassVar[type[PythonTrainer]]
    model_attribute: ClassVar[str] = "model"
    results_attribute: ClassVar[str] = "results_folder"
    step_attribute: ClassVar[str] = "steps"
    """The buffer with the number of steps; empty if there is none."""
    average_attribute: ClassVar[str] = ""
    """The average of the weights; empty if the original has none."""
    checkpoint_name: ClassVar[str]
    """File name of a checkpoint in the original; {step} is the step, {number} the number of the checkpoint."""
    drop_last: ClassVar[bool] = False

    own: PythonTrainer

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
        always = self._complete(translation, given)
        announce(translation)
        self._set_attributes(named)
        self.own = self._build(model, arguments, translation.overrides, always, frozen)
        weakref.finalize(self, self.own.run.close)  # scripts of the originals close nothing
        setattr(self, self.model_attribute, model if isinstance(model, nn.Module) else self.own.unwrapped_model)
        if isinstance(model, CompatModel):
            model._forget_training()  # the trainer has initialised its codebook
        self._show_step()
        self._is_open = False
        self._averaged: tuple[int, nn.Module] | None = None
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
            link = self._results / self.checkpoint_name.format(step=own.step, number=number)
            if link.is_symlink():
                link.unlink()
            if not link.exists():
                folder = own.run.checkpoints / f"step-{own.step:08d}"
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

    # --- attributes of the originals ------------------------------------------------------------------------------

    @property
    def accelerator(self) -> AcceleratorView:
        return AcceleratorView(self)

    @property
    def unwrapped_model(self) -> nn.Module:
        model: nn.Module = getattr(self, self.model_attribute)
        return model

    @property
    def num_train_steps(self) -> int:
        return self.own.config.train.steps

    @property
    def device(self) -> torch.device:
        return self.own.device

    @property
    def is_main(self) -> bool:
        return self.own.is_main

    @property
    def is_local_main(self) -> bool:
        return self.own.is_local_main

    @property
    def is_distributed(self) -> bool:
        return self.own.is_distributed

    @property
    def has_ema(self) -> bool:
        return self.own.state.ema is not None

    def wait(self) -> None:
        self.own.wait()

    def print(self, msg: Any) -> None:
        self.own.print(str(msg))

    def log(self, **values: Any) -> None:
        self.own.log(**as_floats(values))

    def warmup(self, step: int) -> float:
        """The learning rate of a step, also after the warm-up."""
        return self.own.lr_schedule(step)

    def optimizer_of(self, phase: str | None = None) -> torch.optim.Optimizer:
        """The optimizer of a phase; by default of the first one."""
        states = self.own.state.phases
        found = [state.optimizer for state in states if phase in (None, state.phase.name)]
        if not found:
            raise UsageError(f"{type(self).__name__} does not train a {phase}")
        return found[0]

    def _average_view(self) -> AverageView:
        """The average of the weights, as a copy of the model with these weights."""
        if not self.has_ema:
            refuse_attribute(type(self).__name__, self.average_attribute, "this run keeps no average of the weights")
        if self._averaged is None or self._averaged[0] != self.own.step:
            averaged = copy.deepcopy(self.unwrapped_model).eval().requires_grad_(False)
            parts = averaged.training_parts() if isinstance(averaged, CompatModel) else TrainingParts(averaged)
            averages = self.own.state.averaged_modules()
            for name, module in {self.own.exported(): parts.model, **parts.modules}.items():
                if name in averages:
                    module.load_state_dict(averages[name].state_dict())
            self._averaged = (self.own.step, averaged)
        return AverageView(self._averaged[1], self.unwrapped_model)

    # --- data ---------------------------------------------------------------------------------------------------

    @property
    def ds(self) -> Any:
        """The training items, as a data set."""
        return items_of(self.own.splits.train, self.own.config.train.seed)

    @property
    def valid_ds(self) -> Any:
        return items_of(self.own.splits.validation, self.own.config.train.seed)

    @property
    def dl(self) -> Any:
        """Batches of the training items; reading them does not change the training."""
        return loader_of(self.ds, self._micro_batch, self.merge, self.drop_last)

    @property
    def valid_dl(self) -> Any:
        return loader_of(self.valid_ds, self._micro_batch, self.merge, self.drop_last)

    @staticmethod
    def merge(values: list[Tensor]) -> Tensor:
        """Stack the tensors of a batch that have different lengths."""
        return stack_shortest(values)

    @property
    def dl_iter(self) -> Iterator[Any]:
        return cycle(self.dl)

    @property
    def valid_dl_iter(self) -> Iterator[Any]:
        return cycle(self.valid_dl)

    @property
    def _micro_batch(self) -> int:
        train = self.own.config.train
        return max(1, train.batch_size // (train.grad_accum_steps * self.own.engine.world_size))

    # --- trackers -------------------------------------------------------------------------------------------------

    def close_outputs(self) -> None:
        """Stop data workers and trackers; the next step starts them again."""
        self.own.close_outputs()
        self._is_open = False

    def name_project(self, project: str, run: str | None = None) -> None:
        """Set the project and the run name of the trackers, which are started with the next step."""
        keys = {"log.project": project, **({"log.name": run} if run else {})}
        self.own.config = self.own.config.changed(keys)

    def trackers(self, project: str, run: str | None = None) -> AbstractContextManager[None]:
        """Name the trackers of the steps inside of the context."""
        return named_project(self, project, run)

    def wandb_tracking(self, project: str, run: str | None = None, **hps: Any) -> AbstractContextManager[None]:
        """Log the steps inside of the context to wandb."""
        names = tuple(dict.fromkeys((*self.own.config.log.trackers, "wandb")))
        check_trackers(names)
        self.own.config = self.own.config.changed({"log.trackers": names})
        return named_project(self, project, run)

    # --- as a module ------------------------------------------------------------------------------------------------

    def eval(self) -> Self:
        self.unwrapped_model.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.to()`, `.cuda()`, `.half()` and the like: the trainer has placed model, average and optimizer already."""
        here = torch.zeros(1, device=self.device)
        try:
            there = fn(here)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"{type(self).__name__} cannot be moved to that device: {reason}") from None
        if (there.device.type, there.dtype) != (here.device.type, here.dtype):
            raise UsageError(
                f"{type(self).__name__} trains on {here.device.type} in {str(here.dtype)[6:]}; pass "
                'config={"engine.device": …, "engine.precision": …} to it instead of moving it'
            )
        return self


def number(logs: Logs, name: str) -> float:
    """A metric of the step as a number; 0 if the step has none."""
    value = logs.get(name)
    return 0.0 if value is None else float(value)


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
