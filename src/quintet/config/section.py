"""`Section`, a validated group of configuration keys, and one-sentence error messages for wrong keys and values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from quintet.config.aliases import migrate, renamed
from quintet.config.tree import LONGEST_VALUE, Tree, plain, short
from quintet.errors import UsageError

LARGEST_NUMBER = 1e12
"""Largest value of a key that is not an integer; no quantity of a run comes near it."""


class Section(BaseModel):
    """A group of keys. Unknown keys are refused; validated values are immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*")
    @classmethod
    def _check_magnitude(cls, value: Any) -> Any:
        """Numbers beyond these limits cannot be written and read again, or overflow in the arithmetic of sizes."""
        for number in _numbers(value):
            if isinstance(number, int) and abs(number) >= 2**63:
                raise ValueError("must be an integer of at most 64 bits")
            if isinstance(number, float) and abs(number) > LARGEST_NUMBER:
                raise ValueError(f"must not be larger than {LARGEST_NUMBER:g}")
        return value

    def unreached(self, steps: int) -> dict[str, str]:
        """Keys of this section that name a step which a run of `steps` steps does not reach, each with what therefore
        never happens; for a warning."""
        return {}


def _numbers(value: Any) -> Iterator[Any]:
    """The value, or the elements of nested tuples."""
    if isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
    else:
        yield value


SectionT = TypeVar("SectionT", bound=Section)


def validate(schema: type[SectionT], tree: Tree) -> SectionT:
    """Validate a tree of values; the `UsageError` is one sentence that names the key and the fix."""
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise UsageError("; ".join(_explain(schema, detail) for detail in error.errors())) from None


def migrated(schema: type[BaseModel], tree: Tree, section: str = "") -> Tree:
    """A stored configuration of a run, checkpoint or export, with current key names.

    `section` is the name of the section that `tree` holds, such as `model`; empty for a full configuration.
    """
    known = set(keys(schema, f"{section}." if section else ""))
    return dict(migrate({section: tree}, known)[section]) if section else migrate(tree, known)


def keys(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a schema."""
    for name, field in schema.model_fields.items():
        section = _section_of(field.annotation)
        if section is not None:
            yield from keys(section, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for candidate in candidates:
        if candidate is not NoneType and isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _explain(schema: type[BaseModel], detail: Any) -> str:
    key = _key_of(schema, detail["loc"])
    if detail["type"] == "extra_forbidden":
        # For a misspelt section, report the first key inside it.
        inside = detail["input"]
        while isinstance(inside, Mapping) and inside and key.count(".") < 5:
            name, inside = next(iter(inside.items()))
            key = f"{key}.{name}"
        return unknown_key(key, list(keys(schema)))
    message = str(detail["msg"]).removeprefix("Value error, ")
    is_section = isinstance(detail["input"], Mapping)
    if not key or (is_section and detail["type"] == "value_error"):
        return message  # about several keys, which it names
    got = "" if is_section else f" (got {short(detail['input'])})"
    return f"{plain(key)}: {message[0].lower()}{message[1:]}{got}"


def _key_of(schema: type[BaseModel], location: Sequence[int | str]) -> str:
    """The dotted key an error is about, without the parts that pydantic adds for unions and list indices."""
    parts: list[str] = []
    section: type[BaseModel] | None = schema
    for part in location:
        parts.append(str(part))
        if section is None or part not in section.model_fields:
            break
        section = _section_of(section.model_fields[str(part)].annotation)
        if section is None:
            break
    return ".".join(parts)


def unknown_key(key: str, known: Sequence[str]) -> str:
    """The message for a key that does not exist: its current name if it was renamed, else the most similar key."""
    current = renamed(key, known)
    if current is not None:
        return f"unknown key {short(key)}: it was renamed to '{current}'"
    key = key if len(key) <= LONGEST_VALUE else f"{key[: LONGEST_VALUE - 1]}…"  # difflib is slow on long texts
    by_last_part = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    near = [by_last_part[key]] if key in by_last_part else difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    near = near or [by_last_part[part] for part in difflib.get_close_matches(key.rsplit(".", 1)[-1], by_last_part, n=1)]
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown key {short(key)}{hint} (`quintet config RECIPE` lists all keys)"
