"""Waits: operations for which a process stops until the GPU has done all the work it was given.

Two kinds. A read brings a value or a data-dependent shape (`nonzero`, indexing by a mask) to the CPU. A blocking copy
brings a tensor from pageable memory to the device. Batches, and what decoding needs, are copied from pinned memory
without waiting, which only the modules in `PINNED` may assume.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor

import quintet

READS = frozenset(
    {
        *("aten._local_scalar_dense.default", "aten.equal.default", "aten.is_nonzero.default"),
        *("aten.nonzero.default", "aten.masked_select.default", "aten.bincount.default"),
        *("aten._unique2.default", "aten.unique_dim.default", "aten.unique_consecutive.default"),
    }
)
"""Operations whose result, or its shape, depends on values on the device."""
SOURCES = Path(quintet.__file__).parent
PINNED = ("common/batch.py:", "sampling/on_device.py:")
COUNTER = SOURCES / "training" / "throughput.py"
"""Passes every operation of some steps on, to count its FLOPs."""


@dataclass(frozen=True)
class Wait:
    """One wait: its kind, the operation, and the line of quintet that asked for it."""

    kind: Literal["read", "blocking copy"]
    operation: str
    line: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.line} ({self.operation})"


def wait_of(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], on_device: type[Tensor], target: str | None
) -> Wait | None:
    """The wait for an operation with an operand or a result on the device; None if a GPU would not wait."""
    if _is_read(name, args, kwargs, on_device, target):
        return Wait("read", name, _caller())
    if _is_copy(name, args, on_device, target):
        line = _caller()
        pinned = kwargs.get("non_blocking") or (name == "aten.copy_.default" and len(args) > 2 and args[2])
        return None if pinned and line.startswith(PINNED) else Wait("blocking copy", name, line)
    return None


def _is_read(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], on_device: type[Tensor], target: str | None
) -> bool:
    if name in READS:
        return True
    if name == "aten.repeat_interleave.Tensor":
        return kwargs.get("output_size") is None
    if name == "aten._to_copy.default":
        return target == "cpu" and isinstance(args[0], on_device)
    if name == "aten.copy_.default":
        return not isinstance(args[0], on_device)
    return any(index.dtype in (torch.bool, torch.uint8) for index in _indices(name, args))


def _is_copy(name: str, args: Sequence[Any], on_device: type[Tensor], target: str | None) -> bool:
    if name == "aten._to_copy.default":
        return target not in (None, "cpu") and not isinstance(args[0], on_device)
    if name == "aten.copy_.default":
        return isinstance(args[0], on_device) and not isinstance(args[1], on_device)
    return any(not isinstance(index, on_device) for index in _indices(name, args))


def _indices(name: str, args: Sequence[Any]) -> list[Tensor]:
    is_indexing = name.startswith(("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index."))
    return [index for index in args[1] if index is not None] if is_indexing else []


def _caller() -> str:
    """The innermost line of quintet on the stack, `path:line`."""
    for frame in _frames():
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCES) and path != COUNTER:
            return f"{path.relative_to(SOURCES)}:{frame.f_lineno}"
    return "the backward pass"


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
