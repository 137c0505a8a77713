"""Owns what a training consists of between two steps, and its way into a checkpoint and back.

There is no random state here: every random number is a function of (seed, step) or (seed, epoch, item).
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import quintet
from quintet.common.weights import checkpoint
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.loading import check_shapes, copy_tensors, read_meta
from quintet.config import EMAConfig, RunConfig
from quintet.errors import CheckpointError
from quintet.training import optim
from quintet.training.distributed import sharding
from quintet.training.phase import Phase
from quintet.training.task import Task

if TYPE_CHECKING:
    from quintet.training.engine import Engine


@dataclass
class PhaseState:
    """A phase with the parameters it moves and the optimizer that moves them."""

    phase: Phase
    parameters: optim.Parameters
    optimizer: Optimizer


@dataclass
class Progress:
    """The numbers of a training, as `meta.json` holds them."""

    step: int = 0
    items_seen: int = 0
    bad_steps: int = 0
    bad_steps_in_a_row: int = 0
    rollbacks: int = 0
    best_value: float | None = None
    best_step: int | None = None


class EMA:
    """The moving average of the weights: copies of some modules, always in eval mode and without gradients.

    Parameters are averaged; buffers are copied, because they are counts or averages already.
    """

    def __init__(self, config: EMAConfig, modules: Mapping[str, nn.Module], names: Iterable[str]) -> None:
        self.config = config
        self.live = {name: modules[name] for name in names}
        self.modules = {name: copy.deepcopy(module).eval().requires_grad_(False) for name, module in self.live.items()}

    def decay(self, step: int) -> float:
        """Ramped, so that the average of a short run does not consist of its first weights."""
        if step < self.config.start:
            return 0.0
        updates = (step - self.config.start) // self.config.every
        return min(self.config.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step >= self.config.start and (step - self.config.start) % self.config.every:
            return
        weight = 1 - self.decay(step)
        for name, live in self.live.items():
            average = self.modules[name]
            torch._foreach_lerp_(list(average.parameters()), list(live.parameters()), weight)
            buffers = list(average.buffers())
            if buffers:
                torch._foreach_copy_(buffers, list(live.buffers()))


class TrainingState:
    """Modules, their average, optimizers and progress of one run."""

    def __init__(self, task: Task[Any], engine: Engine | None = None) -> None:
        self.task = task
        self.progress = Progress()
        config: RunConfig = task.config
        self.ema = EMA(config.ema, task.modules, task.averaged) if config.ema.enabled else None
        if engine is not None:
            # Copied whole first: what was cut cannot be copied. The optimizers are for the parts.
            engine.shard(task.modules)
            engine.shard(self.ema.modules if self.ema else {})
        self.phases = [self._phase_state(phase) for phase in task.phases]

    def _phase_state(self, phase: Phase) -> PhaseState:
        parameters = optim.named_parameters(self.task.modules, phase.modules)
        return PhaseState(phase, parameters, optim.make_optimizer(phase.optim, parameters))

    def averaged_modules(self) -> dict[str, nn.Module]:
        """The modules to look at: the averaged ones where there are any."""
        return {**self.task.modules, **(self.ema.modules if self.ema else {})}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything that is trained or averaged, by the name of its file; not copied."""
        tensors = {name: dict(module.state_dict()) for name, module in self.task.modules.items()}
        for name, module in self.ema.modules.items() if self.ema else ():
            tensors[f"ema/{name}"] = dict(module.state_dict())
        for state in self.phases:
            tensors[f"optim/{state.phase.name}"] = optim.optimizer_tensors(state.optimizer, state.parameters)
        return tensors

    def contents(self, world_size: int, fingerprint: str) -> Contents:
        contents = Contents(self.tensors())
        for state in self.phases:
            contents.json[f"optim/{state.phase.name}"] = {
                "optimizer": state.phase.optim.model_dump(mode="json"),
                "parameters": list(state.parameters),
            }
        contents.json["meta"] = {
            "format": checkpoint.FORMAT,
            "quintet": quintet.__version__,
            "recipe": self.task.name,
            **asdict(self.progress),
            "data_fingerprint": fingerprint,
            "world_size": world_size,
            **environment(),
        }
        contents.text["config.yaml"] = self.task.config.to_yaml()
        return contents

    def restore(self, folder: Path, optimizers: bool = True) -> dict[str, Any]:
        """Take everything over from a sound checkpoint; returns its `meta.json`."""
        meta = read_meta(folder, self.task.name)
        progress = read_progress(folder, meta)
        for name, module in self.task.modules.items():
            load_sharded(module, folder, name)
        if self.ema:
            for name, module in self.ema.modules.items():
                load_sharded(module, folder, f"ema/{name}")
        if optimizers:
            for state in self.phases:
                self._restore_optimizer(state, folder)
        self.progress = progress
        return meta

    def _restore_optimizer(self, state: PhaseState, folder: Path) -> None:
        origin = f"optim/{state.phase.name}"
        if _can_be_read_in_parts(state.parameters, folder, origin):
            tensors = optim.allocate_state(state.parameters, checkpoint.sharded_shapes(folder, origin))
            sharding.read(folder, origin, tensors)
        else:
            tensors = checkpoint.read_tensors(folder, origin)
        optim.load_optimizer_tensors(state.optimizer, state.parameters, tensors, f"{folder / origin}.safetensors")


def read_progress(folder: Path, meta: Mapping[str, Any]) -> Progress:
    """A number that an older version did not know yet has its default."""
    known = {name: meta[name] for name in asdict(Progress()) if name in meta}
    for name in ("step", "items_seen", "bad_steps", "bad_steps_in_a_row", "rollbacks"):
        if type(known.get(name, 0)) is not int or known.get(name, 0) < 0:
            raise CheckpointError(f"{folder / 'meta.json'}: '{name}' is not a count")
    if "step" not in known or (checkpoint.is_checkpoint_name(folder) and known["step"] != checkpoint.step_of(folder)):
        raise CheckpointError(f"{folder / 'meta.json'} is not of the step that the folder's name says")
    value, step = known.get("best_value"), known.get("best_step")
    if not (value is None or isinstance(value, float)) or not (step is None or isinstance(step, int)):
        raise CheckpointError(f"{folder / 'meta.json'}: 'best_value' and 'best_step' are not numbers")
    return Progress(**known)


def newest_good(root: Path) -> int:
    """The step of the newest sound checkpoint that was not taken amid bad steps; -1 if there is none."""
    for folder in reversed(checkpoint.steps(root)):
        try:
            checkpoint.verify(folder)
            if checkpoint.read_json(folder, "meta")["bad_steps_in_a_row"] == 0:
                return checkpoint.step_of(folder)
        except CheckpointError:
            continue
    return -1


def environment() -> dict[str, Any]:
    """What the last bits of a result depend on besides the configuration."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": platform.machine() + " " + cpu_name(),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def load_sharded(module: nn.Module, folder: Path, name: str) -> None:
    """As `load_module`, into a module that may be sharded: each process then reads its own part alone."""
    own = module.state_dict()
    if _can_be_read_in_parts(own, folder, name):
        check_shapes(own, checkpoint.sharded_shapes(folder, name), str(folder / name))
        sharding.read(folder, name, own)
    else:
        copy_tensors(module, checkpoint.read_tensors(folder, name), f"{folder / name}.safetensors", sharding.copy_into)


def _can_be_read_in_parts(tensors: Mapping[str, Tensor], folder: Path, name: str) -> bool:
    """Whether each process may read its own part alone."""
    return any(map(sharding.is_sharded, tensors.values())) and checkpoint.is_sharded(folder, name)
