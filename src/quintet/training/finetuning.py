"""Which parameters a run trains: patterns over their names, freezing (`train.freeze`), adapters (`train.lora`), and
learning rates by parameter (`optim.lr_scale`, `optim.layer_decay`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from quintet.config import OptimConfig, RunConfig
from quintet.errors import UsageError
from quintet.nn.lora import LoRALinear, adaptable_layers, add_adapters
from quintet.nn.quantize.vector import VectorQuantizer
from quintet.training.task import Task

_BLOCK = re.compile(r"(.*\bblocks\.\d+)\.")


def trains_a_part(config: RunConfig) -> bool:
    """Whether a run trains adapters, or not all of its parameters."""
    return config.train.lora is not None or bool(config.train.freeze)


def choose_parameters(task: Task[Any]) -> None:
    """Add the adapters of `train.lora` and freeze what the run does not train. Phases without a trained parameter are
    dropped; the first must keep one."""
    train = task.config.train
    _refuse_adapted(task)
    if not trains_a_part(task.config):
        return
    if train.lora is not None:
        _adapt(task, train.lora)
    if train.freeze:
        _freeze(task, train.freeze)
    kept = [phase for phase in task.phases if any(_trained(task.modules[name]) for name in phase.modules)]
    if task.phases and task.phases[0] not in kept:
        raise UsageError(
            f"train.freeze={list(train.freeze)} freezes everything that phase '{task.phases[0].name}' trains; "
            "leave a part of it out"
        )
    task.phases = kept


def description(task: Task[Any]) -> list[str]:
    """How many parameters the run trains, for a run that does not train all."""
    train = task.config.train
    if not trains_a_part(task.config):
        return []
    parameters = [parameter for module in task.modules.values() for parameter in module.parameters()]
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in parameters)
    adapters = f", adapters of rank {train.lora}" if train.lora is not None else ""
    return [f"trained parameters: {trained:,} of {total:,} ({100 * trained / total:.3g} %{adapters})"]


# --- adapters ---------------------------------------------------------------------------------------------------


def _refuse_adapted(task: Task[Any]) -> None:
    """Refuse a model of the user's that an earlier training in this process has adapted: of its weights only the
    adapters would be trained."""
    if any(isinstance(part, LoRALinear) for module in task.modules.values() for part in module.modules()):
        raise UsageError(
            f"this {task.name} has the adapters of an earlier training; save it with save_pretrained, which merges "
            "them, and open it with from_pretrained"
        )


def _adapt(task: Task[Any], rank: int) -> None:
    """Freeze the modules of the first phase, and add trained adapters to the linear layers of their blocks."""
    names = task.phases[0].modules if task.phases else ()
    layers = [layer for name in names for layer in adaptable_layers(task.modules[name]).values()]
    if not layers:
        raise UsageError(
            f"train.lora={rank} adapts the linear layers inside of blocks, and this {task.name} has none; train all "
            "weights, or some of them with train.freeze"
        )
    smallest = min(min(layer.weight.shape) for layer in layers)
    if rank >= smallest:
        raise UsageError(
            f"train.lora={rank} is no low rank for this model: the smallest of its adapted matrices has rank "
            f"{smallest}; use train.lora={max(1, smallest // 4)}"
        )
    for name in names:
        module = task.modules[name].requires_grad_(False)
        add_adapters(module, rank, task.config.train.seed)
        _fix_codebooks(module)


def _fix_codebooks(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, VectorQuantizer):
            part.is_fixed = True


# --- freezing ---------------------------------------------------------------------------------------------------


def _freeze(task: Task[Any], patterns: Sequence[str]) -> None:
    """Freeze the parameters and codebooks that match a pattern."""
    owned = [f"{name}.{path}" for name, module in task.modules.items() for path in module.state_dict()]
    for pattern in patterns:
        _refuse_without_match("train.freeze", pattern, owned)
    for name, module in task.modules.items():
        for path, parameter in module.named_parameters():
            if matches(patterns, f"{name}.{path}"):
                parameter.requires_grad_(False)
        for path, part in module.named_modules():
            codebook = ".".join(each for each in (name, path, "codebook") if each)
            if isinstance(part, VectorQuantizer) and matches(patterns, codebook):
                part.is_fixed = True


def _trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


# --- patterns ---------------------------------------------------------------------------------------------------


def matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a pattern names the parameter `module.path` or something that it is part of. The module may be left out.

    `*` and `?` are wildcards; without them a pattern is a dotted prefix."""
    return any(fnmatchcase(part, pattern) for pattern in patterns for part in _enclosing(name))


def _enclosing(name: str) -> Iterator[str]:
    """The dotted prefixes of a name, with and without its module."""
    for text in (name, name.partition(".")[2]):
        parts = text.split(".")
        yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _refuse_without_match(key: str, pattern: str, names: Iterable[str]) -> None:
    names = list(names)
    if any(matches([pattern], name) for name in names):
        return
    known = list(dict.fromkeys(part for name in names for part in _enclosing(name)))
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5) or [
        part for part in known if "." not in part and part != "weight"
    ]
    raise UsageError(f"{key}: {pattern[:100]!r} matches no parameter; the nearest names are {', '.join(near[:5])}")


# --- learning rates ---------------------------------------------------------------------------------------------


def check_rates(task: Task[Any]) -> None:
    """Raise UsageError for a pattern of `optim.lr_scale` that names nothing, and `optim.layer_decay` without blocks."""
    optim: OptimConfig = task.config.optim
    names = [f"{name}.{path}" for name, module in task.modules.items() for path, _ in module.named_parameters()]
    for pattern, _ in optim.lr_scale:
        _refuse_without_match("optim.lr_scale", pattern, names)
    if optim.layer_decay != 1 and not any(map(_BLOCK.match, names)):
        raise UsageError(
            f"optim.layer_decay={optim.layer_decay} needs a model of blocks, which this {task.name} is not; use "
            "optim.lr_scale"
        )


def rate_factors(optim: OptimConfig, modules: Mapping[str, nn.Module]) -> dict[str, float]:
    """The factor of the learning rate of each parameter `module.path` whose factor is not 1."""
    factors: dict[str, float] = {}
    for name, module in modules.items():
        paths = [path for path, _ in module.named_parameters()]
        for path, depth in zip(paths, _depths_below_output(paths), strict=True):
            factor = optim.layer_decay**depth
            for pattern, scale in optim.lr_scale:
                factor *= scale if matches([pattern], f"{name}.{path}") else 1.0
            factors[f"{name}.{path}"] = factor
    return {name: factor for name, factor in factors.items() if factor != 1.0}


def _depths_below_output(paths: Sequence[str]) -> list[int]:
    """How many layers below the output each parameter is, in the order of a module: the blocks count, what comes
    before the first block is one below it, and what comes after the last is the output (0)."""
    blocks = [found.group(1) if (found := _BLOCK.match(path)) else None for path in paths]
    numbers = {block: number for number, block in enumerate(dict.fromkeys(filter(None, blocks)), start=1)}
    top, layer, depths = len(numbers) + 1, 0, []
    left = len([block for block in blocks if block])
    for block in blocks:
        if block is not None:
            layer, left = numbers[block], left - 1
        outside = block is None and not left
        depths.append(0 if outside or top == 1 else top - layer)
    return depths
