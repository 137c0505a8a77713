"""`TrainingState`: modules, EMA, optimizers and progress between two steps; saving and restoring them.

There is no RNG state: every random number is a function of (seed, step) or (seed, epoch, item).
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import quintet
from quintet.common import collectives
from quintet.common.memory import building
from quintet.common.weights import checkpoint, tensor_groups
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.loading import check_shapes, copy_tensors, read_meta
from quintet.config import EMAConfig, RunConfig
from quintet.errors import CheckpointError
from quintet.training import optim
from quintet.training.distributed import sharding
from quintet.training.finetuning import rate_factors, trains_a_part
from quintet.training.phase import Phase
from quintet.training.task import Task

if TYPE_CHECKING:
    from quintet.training.engine import Engine


@dataclass
class PhaseState:
    """A phase with its parameters and their optimizer."""

    phase: Phase
    parameters: optim.Parameters
    optimizer: Optimizer


@dataclass
class Progress:
    """Counters of a training, stored in `meta.json`."""

    step: int = 0
    items_seen: int = 0
    bad_steps: int = 0
    bad_steps_in_a_row: int = 0
    rollbacks: int = 0
    loss_scale: float | None = None
    """Scale of the loss in the next step; None unless the run is in fp16."""
    steps_since_overflow: int = 0
    """Number of accepted steps since the loss scale was halved."""
    best_value: float | None = None
    best_step: int | None = None
    best_age: int = 0
    """Number of validations since the best one."""


class EMA:
    """Exponential moving average of weights: copies of modules in eval mode, without gradients.

    Parameters are averaged; buffers are copied, because they are counts or averages already. With `share_frozen`,
    parameters that are not trained are not copied: both have the same tensor. With `empty`, parameters are on `meta`
    until `allocate`, so that modules can be sharded without a second full copy of their weights.
    """

    def __init__(
        self,
        config: EMAConfig,
        modules: Mapping[str, nn.Module],
        names: Iterable[str],
        share_frozen: bool = False,
        empty: bool = False,
    ) -> None:
        self.config = config
        self.live = {name: modules[name] for name in names}
        duplicate = sharding.copy_without_weights if empty else partial(_copy, share_frozen=share_frozen)
        self.modules = {name: duplicate(module).eval().requires_grad_(False) for name, module in self.live.items()}

    @torch.no_grad()
    def allocate(self) -> None:
        """Give the copies the local shards of the live modules."""
        for name, live in self.live.items():
            sharding.allocate_shards(self.modules[name], live)

    def decay(self, step: int) -> float:
        """The decay at a step, ramped up so that the EMA of a short run is not dominated by its first weights."""
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
            ema = self.modules[name]
            pairs = zip(ema.parameters(), live.parameters(), strict=True)
            own = [(averaged, current) for averaged, current in pairs if averaged is not current]
            if own:
                torch._foreach_lerp_([averaged for averaged, _ in own], [current for _, current in own], weight)
            buffers = list(ema.buffers())
            if buffers:
                torch._foreach_copy_(buffers, list(live.buffers()))


def _copy(module: nn.Module, share_frozen: bool) -> nn.Module:
    """A copy of a module; with `share_frozen`, parameters that are not trained are shared."""
    shared = {id(each): each for each in module.parameters() if share_frozen and not each.requires_grad}
    return copy.deepcopy(module, shared)


class TrainingState:
    """Modules, EMA, optimizers and progress of one run."""

    def __init__(self, task: Task[Any], engine: Engine | None = None) -> None:
        self.task = task
        self.device = torch.device("cpu") if engine is None else engine.device
        self.progress = Progress()
        config: RunConfig = task.config
        sharded = engine is not None and engine.is_sharded
        # Each module is sharded by itself, so that sharded modules share no weights.
        share = trains_a_part(config) and not sharded
        self.ema = EMA(config.ema, task.modules, task.averaged, share, sharded) if config.ema.enabled else None
        if engine is not None and sharded:
            # The EMA was copied before: sharded modules cannot be copied. Optimizers are created after sharding.
            if task.deferred is None:
                engine.shard(task.modules)
            else:
                with building(config):
                    task.deferred.shard(task.modules.values(), self.device, partial(engine.shard, task.modules))
                task.deferred = None
                for module in task.modules.values():
                    for buffer in module.buffers():  # they are whole in every process
                        collectives.broadcast(buffer.data)
            if self.ema:
                engine.shard(self.ema.modules)
                self.ema.allocate()
        product_dtype = None if engine is None else engine.product_dtype
        self.phases = [self._phase_state(phase, product_dtype) for phase in task.phases]

    def _phase_state(self, phase: Phase, product_dtype: torch.dtype | None) -> PhaseState:
        parameters = optim.named_parameters(self.task.modules, phase.modules)
        modules = {name: self.task.modules[name] for name in phase.modules}
        factors = rate_factors(self.task.config.optim, modules)
        optimizer = optim.make_optimizer(phase.optim, parameters, product_dtype, factors)
        optimizer.zero_grad(set_to_none=True)  # a model may come with gradients of the user's own steps
        return PhaseState(phase, parameters, optimizer)

    def averaged_modules(self) -> dict[str, nn.Module]:
        """The modules for evaluation: the EMA copies, and the live modules that have none."""
        return {**self.task.modules, **(self.ema.modules if self.ema else {})}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All tensors of the state, by file name; not copied."""
        tensors = {name: dict(module.state_dict()) for name, module in self.task.modules.items()}
        for name, module in self.ema.modules.items() if self.ema else ():
            tensors[f"ema/{name}"] = dict(module.state_dict())
        for state in self.phases:
            tensors[f"optim/{state.phase.name}"] = optim.optimizer_tensors(state.optimizer, state.parameters)
        return tensors

    def contents(self, world_size: int, fingerprint: str) -> Contents:
        """The contents of a checkpoint."""
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
            **environment(self.device),
        }
        contents.text["config.yaml"] = self.task.config.to_yaml()
        return contents

    def restore(self, folder: Path, optimizers: bool = True) -> dict[str, Any]:
        """Restore everything from a verified checkpoint; returns its `meta.json`.

        Without `optimizers`, restore the weights alone: optimizers and progress start anew."""
        meta = read_meta(folder, self.task.name)
        progress = read_progress(folder, meta)
        for name, module in self.task.modules.items():
            load_sharded(module, folder, name)
        if self.ema:
            for name, module in self.ema.modules.items():
                load_sharded(module, folder, f"ema/{name}")
        for state in self.phases:
            if optimizers:
                self._restore_optimizer(state, folder)
            else:
                state.optimizer.state.clear()
        self.progress = progress if optimizers else Progress()
        return meta

    def _restore_optimizer(self, state: PhaseState, folder: Path) -> None:
        origin = f"optim/{state.phase.name}"
        if _can_read_shards(state.parameters, folder, origin):
            tensors = optim.allocate_state(state.parameters, tensor_groups.sharded_shapes(folder, origin))
            sharding.read(folder, origin, tensors)
        else:
            tensors = tensor_groups.read_tensors(folder, origin)
        optim.load_optimizer_tensors(state.optimizer, state.parameters, tensors, f"{folder / origin}.safetensors")


def read_progress(folder: Path, meta: Mapping[str, Any]) -> Progress:
    """The counters of `meta.json`. Counters that an older version did not write have their default."""
    known = {name: meta[name] for name in asdict(Progress()) if name in meta}
    for name in ("step", "items_seen", "bad_steps", "bad_steps_in_a_row", "rollbacks", "steps_since_overflow"):
        if type(known.get(name, 0)) is not int or known.get(name, 0) < 0:
            raise CheckpointError(f"{folder / 'meta.json'}: '{name}' is not a count")
    if "step" not in known or (checkpoint.is_checkpoint_name(folder) and known["step"] != checkpoint.step_of(folder)):
        raise CheckpointError(f"{folder / 'meta.json'} has another step than the name of the folder")
    value, step = known.get("best_value"), known.get("best_step")
    age = known.get("best_age", 0)
    if type(age) is not int or age < 0:
        raise CheckpointError(f"{folder / 'meta.json'}: 'best_age' is not a count")
    if not (value is None or isinstance(value, float)) or not (step is None or isinstance(step, int)):
        raise CheckpointError(f"{folder / 'meta.json'}: 'best_value' and 'best_step' are not numbers")
    scale = known.get("loss_scale")
    if not (scale is None or (isinstance(scale, float) and 0 < scale < float("inf"))):
        raise CheckpointError(f"{folder / 'meta.json'}: 'loss_scale' is not a positive number")
    return Progress(**known)


def newest_good(root: Path) -> int:
    """The step of the newest valid checkpoint that was not saved during non-finite steps; -1 if there is none."""
    for folder in reversed(checkpoint.steps(root)):
        try:
            checkpoint.verify(folder)
            if checkpoint.read_json(folder, "meta")["bad_steps_in_a_row"] == 0:
                return checkpoint.step_of(folder)
        except CheckpointError:
            continue
    return -1


def environment(device: torch.device) -> dict[str, Any]:
    """Environment on which bit-identical results depend, besides the configuration."""
    found = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": platform.machine() + " " + cpu_name(),
    }
    return found if device.type == "cpu" else {**found, **gpu_environment(device)}


def gpu_environment(device: torch.device) -> dict[str, Any]:
    """The part of the environment that a run on a GPU depends on; a run on a CPU has none of these."""
    if device.type != "cuda":
        return {"gpu": device.type}
    return {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "tf32": torch.backends.cuda.matmul.allow_tf32,
    }


GPU_KEYS = ("gpu", "cuda", "cudnn", "tf32")


def environment_changes(meta: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between the environment of a checkpoint and that of this process, one text each."""
    names = [*now, *(name for name in GPU_KEYS if name in meta and name not in now)]
    return [
        f"{name} was {meta.get(name)} and is now {now.get(name)}" for name in names if meta.get(name) != now.get(name)
    ]


def cpu_name() -> str:
    """The model name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def load_sharded(module: nn.Module, folder: Path, name: str) -> None:
    """Like `load_module`, for a module that may be sharded: each process then reads only its own shard."""
    state = module.state_dict()
    if _can_read_shards(state, folder, name):
        check_shapes(state, tensor_groups.sharded_shapes(folder, name), str(folder / name))
        sharding.read(folder, name, state)
    else:
        copy_tensors(
            module, tensor_groups.read_tensors(folder, name), f"{folder / name}.safetensors", sharding.copy_into
        )


def _can_read_shards(tensors: Mapping[str, Tensor], folder: Path, name: str) -> bool:
    """Whether both tensors and checkpoint are sharded, so that each process can read only its own shard."""
    return any(map(sharding.is_sharded, tensors.values())) and tensor_groups.is_sharded(folder, name)
