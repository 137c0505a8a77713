"""`CompatModel`: base of the models with the constructors and calls of the original packages.

A compat model holds quintet's own modules as submodules, and takes its loss from the family's `Task`, so that a
hand-written loop (`loss.backward(); optimizer.step()`) minimises what quintet's trainers minimise.

State that quintet's trainers change after a step, such as an EMA codebook, is changed at the start of the next training
forward pass: a hand-written loop has no other hook, and nothing may change between a forward and its backward pass.
Random choices (masks, dropped texts, samples) are functions of a seed that each call takes from torch's global
generator, so that `torch.manual_seed` before a call makes it reproducible, as with the originals.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint, tensor_groups
from quintet.common.weights.loading import check_shapes, copy_tensors, read_meta
from quintet.common.weights.pretrained import CONFIG, WEIGHTS, pickle_hint
from quintet.compat.translation import CompatibilityNotice
from quintet.compat.views import refuse_attribute
from quintet.config import RunConfig
from quintet.errors import UsageError
from quintet.pipelines.base import Pipeline
from quintet.training.objective import LossPasses
from quintet.training.task import Task

PAGE = "docs/migration.md"
REST = "compat"
"""The group of tensors in a saved folder that quintet's own export does not have, such as a discriminator."""


@dataclass
class TrainingParts:
    """What quintet's own trainer takes: the model, frozen pipelines by key, further modules by name, dotted keys."""

    model: nn.Module
    frozen: dict[str, Pipeline[Any]] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    trained: bool = False
    """Whether data-dependent state, such as a codebook, was initialised already and must be kept."""


class CompatModel(LossPasses, nn.Module):
    """Base class. A subclass builds its submodules in its constructor and describes them in `training_parts`."""

    config_class: ClassVar[type[RunConfig]]
    task_class: ClassVar[type[Task[Any]]]
    absent: ClassVar[Mapping[str, str]] = {}
    """Attributes of the original that this model does not have, and what to use instead."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self._initialised = False
        self._pending: Statistics | None = None
        self._task: Task[Any] | None = None

    @property
    def device(self) -> torch.device:
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        tensors: Iterable[Tensor] = chain(self.parameters(), self.buffers())
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)

    def __getattr__(self, name: str) -> Any:
        if name in self.absent:
            refuse_attribute(type(self).__name__, name, self.absent[name])
        return super().__getattr__(name)

    def cuda(self, device: int | torch.device | None = None) -> Self:
        if not torch.cuda.is_available():
            raise UsageError(f"{type(self).__name__}.cuda(): there is no CUDA device; leave .cuda() out to use the CPU")
        return super().cuda(device)

    def __getstate__(self) -> dict[str, Any]:
        # A copy builds its own task, whose modules are those of the copy.
        return {**self.__dict__, "_task": None, "_pending": None}

    # --- training -------------------------------------------------------------------------------------------

    def new_rng(self, size: int) -> ItemRNG:
        return ItemRNG(new_seed(), [0] * size, range(size))

    def training_parts(self) -> TrainingParts:
        """The parts of this model for quintet's own trainer."""
        raise UsageError(f"{type(self).__name__} is a part of another model and has no trainer of its own")

    @property
    def task(self) -> Task[Any]:  # type: ignore[override]
        """quintet's task of this model, for its losses."""
        if self._task is None:
            parts = self.training_parts()
            self._task = build_task(self.task_class, parts)
        return self._task

    # --- saving ---------------------------------------------------------------------------------------------

    def contents(self) -> checkpoint.Contents:
        """The files of a saved folder. The tensors are those of this model, not copies."""
        if not hasattr(self, "task_class"):  # a part of another model
            settings = {"class": type(self).__name__, "model": {}}
            return checkpoint.Contents({WEIGHTS: dict(self.state_dict())}, {CONFIG.removesuffix(".json"): settings})
        contents: checkpoint.Contents = self.task.pipeline(self.task.modules).contents()
        exported = {tensor.data_ptr() for group in contents.tensors.values() for tensor in group.values()}
        rest = {name: tensor for name, tensor in self.state_dict().items() if tensor.data_ptr() not in exported}
        if rest:
            contents.tensors[REST] = rest
        return contents

    def save(self, path: str | Path) -> None:
        """Write the folder `path` in quintet's export format; a folder that `save` wrote is replaced."""
        self.apply_statistics()
        replace_folder(Path(path), self.contents())

    def load(self, path: str | Path) -> Self:
        """Load the weights of a folder that `save` wrote, or of a checkpoint of a trainer."""
        folder = Path(path)
        if (folder / "meta.json").is_file() and hasattr(self, "task_class"):
            return self._load_checkpoint(folder)
        refuse_pickle(folder)
        for name, tensors in self.contents().tensors.items():
            saved = tensor_groups.read_tensors(folder, name)
            check_shapes(tensors, {key: tuple(value.shape) for key, value in saved.items()}, str(folder / name))
            with torch.no_grad():
                for key, tensor in tensors.items():
                    tensor.copy_(saved[key])
        self._forget_training()
        return self

    def _load_checkpoint(self, folder: Path) -> Self:
        """Load the live weights of a checkpoint of quintet's trainer."""
        checkpoint.verify(folder)
        read_meta(folder, self.task_class.pipeline_class.recipe)
        for name, module in self.task.modules.items():
            copy_tensors(module, tensor_groups.read_tensors(folder, name), str(folder / name))
        self._forget_training()
        return self

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        self._forget_training()
        return super().load_state_dict(*arguments, **keywords)

    def _forget_training(self) -> None:
        """Loaded weights are not initialised from data, and the hash of a frozen model may differ now."""
        self._initialised, self._pending, self._task = True, None, None


def new_seed() -> int:
    """A seed from torch's global generator."""
    return int(torch.randint(2**62, ()).item())


def build_task(task_class: type[Task[Any]], parts: TrainingParts) -> Task[Any]:
    """The task that quintet's trainer would build from these parts."""
    return task_class.from_model(parts.model, frozen=parts.frozen, modules=parts.modules, keys=parts.keys)


# --- folders ------------------------------------------------------------------------------------------------


def refuse_pickle(path: Path) -> None:
    """Raise `UsageError` for a path that is not a saved folder; a file is not opened."""
    if path.is_file():
        raise UsageError(
            f"{path} is a file, and quintet never opens pickled checkpoints; it loads the folder that `save` of "
            f"quintet.compat wrote (see {PAGE})"
        )
    if not (path / CONFIG).is_file():
        hint = pickle_hint(path) if path.is_dir() else ""
        raise UsageError(f"{path} is not a folder that `save` of quintet.compat wrote{hint}")


def replace_folder(target: Path, contents: checkpoint.Contents) -> None:
    """Write a folder; a folder that quintet wrote there before is replaced, anything else is refused."""
    if not may_replace(target):
        raise UsageError(f"{target} exists and was not written by quintet; choose another path, or delete it")
    staged, old = target.with_name(f".new-{target.name}"), target.with_name(f".old-{target.name}")
    for leftover in (staged, old):
        shutil.rmtree(leftover, ignore_errors=True)
    checkpoint.write_folder(staged, contents)
    if target.exists():
        os.rename(target, old)
    os.rename(staged, target)
    shutil.rmtree(old, ignore_errors=True)


def may_replace(target: Path) -> bool:
    """Whether there is nothing at this path, an empty folder, or a folder that quintet wrote."""
    is_empty = target.is_dir() and not any(target.iterdir())
    return not target.exists() or is_empty or (target / checkpoint.MANIFEST).is_file()


# --- arguments of the originals --------------------------------------------------------------------------------


def refuse_unless(owner: str, name: str, value: Any, fits: Iterable[Any], reason: str) -> None:
    """Refuse an argument that quintet's model does not have, unless its value means the same as leaving it out."""
    if not any(value is fit or (type(value) is type(fit) and bool(value == fit)) for fit in fits):
        raise UsageError(f"{owner}: {name}={value!r} is refused: {reason}")


def refuse_unknown(owner: str, keywords: Mapping[str, Any]) -> None:
    """Refuse keywords that the original does not have either."""
    if keywords:
        raise UsageError(f"{owner} has no argument '{next(iter(keywords))}'")


def notify(owner: str, *sentences: str) -> None:
    """Warn once per call about what differs from the original, at the line of the caller."""
    if sentences:
        text = f"{owner}: {'; '.join(sentences)} (see {PAGE})"
        warnings.warn(text, CompatibilityNotice, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """The `stacklevel` of the first frame outside of quintet, counted from `notify`."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "quintet":
        frame = frame.f_back
        level += 1
    return level
