"""Owns how the items of a person's own data set find their places: by key, by declared name, or by type.

An item is a dictionary, a tuple with declared names, a bare tuple, or a single value. A bare tuple is routed by type
where that is unambiguous; otherwise the error lists what was seen and what is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintet.errors import UsageError


@dataclass(frozen=True)
class Field:
    """A place an item's value can take: its name in batches, other names people use, and what fits in."""

    name: str
    aliases: tuple[str, ...]
    accepts: Callable[[Any], bool]
    expects: str
    required: bool = True

    def known_as(self, key: str) -> bool:
        return key == self.name or key in self.aliases


def route(item: Any, fields: Sequence[Field], declared: Sequence[str] | None = None) -> dict[str, Any]:
    """One item of any form to values by field name. `declared` names a tuple's elements."""
    if isinstance(item, Mapping):
        routed = _by_key(item, fields)
    elif declared is not None:
        routed = _by_name(item, fields, declared)
    else:
        routed = _by_type(item if isinstance(item, (tuple, list)) else (item,), fields)
    missing = [field for field in fields if field.required and field.name not in routed]
    if missing:
        raise UsageError(
            f"an item of the data set has no '{missing[0].name}': {_seen(item)}; expected {_expected(fields)}"
        )
    return routed


def _by_key(item: Mapping[Any, Any], fields: Sequence[Field]) -> dict[str, Any]:
    """Of several names for one field the first counts: the field's own, then its aliases in their order."""
    found = {field.name: [key for key in (field.name, *field.aliases) if key in item] for field in fields}
    return {name: item[keys[0]] for name, keys in found.items() if keys}


def _by_name(item: Any, fields: Sequence[Field], declared: Sequence[str]) -> dict[str, Any]:
    values = item if isinstance(item, (tuple, list)) else (item,)
    if len(values) != len(declared):
        raise UsageError(
            f"{len(declared)} fields are declared ({', '.join(declared)}), an item has {len(values)} values"
        )
    unknown = [name for name in declared if not any(field.known_as(name) for field in fields)]
    if unknown:
        raise UsageError(f"the declared field '{unknown[0]}' is not known; expected {_expected(fields)}")
    named = dict(zip(declared, values, strict=True))
    return _by_key(named, fields)


def _by_type(values: Sequence[Any], fields: Sequence[Field]) -> dict[str, Any]:
    routed: dict[str, Any] = {}
    for value in values:
        fitting = [field for field in fields if field.accepts(value)]
        if len(fitting) != 1 or fitting[0].name in routed:
            why = (
                "fits several fields" if len(fitting) > 1 else "fits no field" if not fitting else "fits a field twice"
            )
            raise UsageError(
                f"a {_kind(value)} in an item {why}: {_seen(values)}; expected {_expected(fields)}; "
                "return a dictionary, or declare the names with data_kwargs"
            )
        routed[fitting[0].name] = value
    return routed


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f"{tuple(shape)} {value.dtype}" if shape is not None else "")


def _seen(item: Any) -> str:
    if isinstance(item, Mapping):
        return "seen {" + ", ".join(f"{key}: {_kind(value)}" for key, value in item.items()) + "}"
    values = item if isinstance(item, (tuple, list)) else (item,)
    return "seen (" + ", ".join(_kind(value) for value in values) + ")"


def _expected(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name} ({field.expects}{'' if field.required else ', optional'})" for field in fields)
