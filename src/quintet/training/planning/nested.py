"""Nested arguments of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(*values: Any) -> Iterator[Any]:
    """The leaves of nested arguments. Those of operations are only tuples, lists and dictionaries, so that this is
    several times as fast as torch's pytrees."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from leaves(*value)
        elif isinstance(value, dict):
            yield from leaves(*value.values())
        else:
            yield value


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Nested arguments with a function applied to their leaves."""
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(function, each) for each in value])
    if isinstance(value, dict):
        return {name: mapped(function, each) for name, each in value.items()}
    return function(value)
