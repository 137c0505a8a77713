"""Regional compilation (`engine.compile`): repeated blocks and losses are compiled by themselves, with `torch.compile`.

A block is a module whose class sets `recomputable = True`; a loss is a function that is decorated with `compilable`.
Blocks of the same structure share one compiled function, so a deep model takes no longer to compile than a shallow one.
The gradients of a block are ready before those of the block below it are computed, so that DDP sends them meanwhile.

Regions are compiled only inside of `Regions.active`. Validation, sampling and a user's own loop run them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")


class Regions:
    """The compiled functions of one run. With `varying_shapes`, sizes are variables from the first call on; otherwise a
    region is compiled for the sizes that it meets first, and once more when one of them changes."""

    def __init__(self, varying_shapes: bool = False, backend: str | Callable[..., Any] = "inductor") -> None:
        self._options: dict[str, Any] = {
            "dynamic": True if varying_shapes else None,
            "backend": backend,
            # Each call of torch.compile has its own versions, of which torch allows few.
            "isolate_recompiles": True,
        }
        self._compiled: dict[object, Callable[..., Any]] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context in which blocks and losses are compiled."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)

    def forget(self) -> None:
        """Forget the sizes that regions have met. What follows is compiled as in a new process."""
        torch.compiler.reset()

    def compiled(self, function: Callable[..., Any], key: object = None) -> Callable[..., Any]:
        """The compiled function. Each `key` has its own compiled versions."""
        if (function, key) not in self._compiled:
            self._compiled[function, key] = torch.compile(function, **self._options)
        return self._compiled[function, key]

    def compile_module(self, module: nn.Module) -> nn.Module:
        """Compile the blocks of a module in place, or the whole module, as a new one, if it has no blocks."""
        found = list(blocks(module))
        for block in found:
            block.forward = _Region(block.forward, self._compiled_forward(block))
        compiled: nn.Module = module if found else torch.compile(module, **self._options)  # type: ignore[assignment]
        return compiled

    def _compiled_forward(self, block: nn.Module) -> Callable[..., Any]:
        compiled = MethodType(self.compiled(type(block).forward, _structure(block)), block)
        plain = block.forward
        if isinstance(plain, partial):  # activation checkpointing, which runs the compiled block twice
            return partial(plain.func, compiled, **plain.keywords)
        return compiled


_ACTIVE: ContextVar[Regions | None] = ContextVar("regions", default=None)


class _Region:
    """The `forward` of a block: compiled inside of `Regions.active`. Parameters keep their names."""

    def __init__(self, plain: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self.plain, self.compiled = plain, compiled

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return (self.plain if _ACTIVE.get() is None else self.compiled)(*args, **keywords)


def compilable(function: Callable[P, R]) -> Callable[P, R]:
    """A pure function of tensors, such as a loss, that `engine.compile` compiles."""

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        regions = _ACTIVE.get()
        chosen = function if regions is None else regions.compiled(function)
        return chosen(*args, **keywords)

    return call


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules whose class sets `recomputable = True`."""
    if getattr(type(module), "recomputable", False):
        yield module
    else:
        for child in module.children():
            yield from blocks(child)


def _structure(block: nn.Module) -> object:
    """What the graph of a block depends on, apart from its inputs.

    torch would tell blocks apart by itself, by guards, but allows few versions of a function, and leaves guards on
    modules out under FSDP."""
    constants = tuple(
        (name, type(part), tuple((key, value) for key, value in vars(part).items() if isinstance(value, CONSTANTS)))
        for name, part in block.named_modules()
    )
    tensors = (*block.named_parameters(), *block.named_buffers())
    return constants, tuple((name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors)


CONSTANTS = (bool, int, float, str)
