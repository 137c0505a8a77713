"""CUDA's rules of autocast for the fake GPU: which operations run in the lower precision, and which in fp32.

The lists are read from torch's own header, so that they are those of the installed version.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fakegpu.device import NAME

Kernel = Callable[..., Any]
KEY = "AutocastPrivateUse1"
KEYS = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))
LIBRARIES: list[torch.library.Library] = []
"""Registrations last as long as these objects."""


def use() -> None:
    """Register the rules in this process."""
    header = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text(encoding="utf-8")
    library, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    LIBRARIES.extend((library, rest))
    makers: dict[str, Callable[[Any], Kernel]] = {
        "AT_FORALL_LOWER_PRECISION_FP": in_lower_precision,
        "AT_FORALL_FP32": in_fp32,
        "AT_FORALL_FP32_SET_OPT_DTYPE": with_fp32_result,
        "AT_FORALL_PROMOTE": in_the_widest,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that these operations have rules of other devices
        for macro, make in makers.items():
            for operation in listed(header, macro):
                library.impl(operation, make(operation), KEY)
        rest.fallback(torch.library.fallthrough_kernel, KEY)


def listed(header: str, macro: str) -> Iterator[Any]:
    """The operations of a list in the header."""
    text = header.split(f"#define {macro}(_)")[1].split("\n\n", maxsplit=1)[0]
    for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", text):
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None and (overload or "default") in packet.overloads():
            yield getattr(packet, overload or "default")


def may_change(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.device.type != NAME:
        return False
    return value.is_floating_point() and value.dtype != torch.float64


def call(operation: Any, dtype: torch.dtype | None, args: Any, kwargs: Any) -> Any:
    """Call the operation without autocast, its operands converted to `dtype`."""

    def converted(value: Any) -> Any:
        return value.to(dtype) if dtype is not None and may_change(value) else value

    with torch._C._ExcludeDispatchKeyGuard(KEYS):
        return operation(*tree_map(converted, args), **tree_map(converted, kwargs))


def in_lower_precision(operation: Any) -> Kernel:
    return lambda *args, **kwargs: call(operation, torch.get_autocast_dtype(NAME), args, kwargs)


def in_fp32(operation: Any) -> Kernel:
    return lambda *args, **kwargs: call(operation, torch.float32, args, kwargs)


def with_fp32_result(operation: Any) -> Kernel:
    place = [argument.name for argument in operation._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = args[place] if place < len(args) else kwargs.get("dtype")
        if may_change(args[0]) and given is None:
            args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
        return call(operation, None, args, kwargs)

    return kernel


def in_the_widest(operation: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtypes = {value.dtype for value in tree_leaves((args, kwargs)) if may_change(value)}
        dtype = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype(NAME)
        return call(operation, dtype, args, kwargs)

    return kernel
