"""Rules for the translation of keywords of the original trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from quintet.training.options import Kind

REQUIRED: Final = object()
"""Default of a required keyword."""
SKIP: Final = object()
"""Result of a conversion that sets nothing."""


@dataclass(frozen=True)
class Noted:
    """A converted value with a notice for the user."""

    value: Any
    notice: str


Converter = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Rule:
    """Translation of one keyword. Exactly one of `keys`, `argument`, `parts`, `spread`, `refused`, `always` is set."""

    keyword: str
    default: Any
    """Default value in the original, which applies if the keyword is left out."""
    explanation: str
    """One sentence for the migration page."""
    keys: tuple[str, ...] = ()
    """Dotted keys that get the value."""
    argument: str = ""
    """Argument of quintet's trainer that gets the value."""
    parts: tuple[Rule, ...] = ()
    """Rules of the entries, if the value is a dictionary."""
    spread: bool = False
    """Whether the value is a mapping of quintet's own keys."""
    refused: str = ""
    """Why the keyword is refused, and what to do instead; not for values in `fits`."""
    always: str = ""
    """Why the keyword has no effect; not reported for values in `fits`."""
    fits: tuple[Any, ...] = ()
    kind: Kind | None = None
    convert: Converter = same
    keeps_none: bool = False
    """Whether None is a value, instead of a missing keyword."""
    times_accumulation: bool = False
    """Whether the original counts per micro-batch, so that the value is multiplied by `grad_accum_every`."""
    only_with: str = ""
    """Another keyword without which the default does not apply."""
    replaces: str = ""
    """Another keyword that the original ignores if this one is true."""


@dataclass(frozen=True)
class Implied:
    """A key with the value that an original trainer always has; it has no keyword for it."""

    key: str
    value: Any
    explanation: str
    unless: str = ""
    """A keyword with which quintet's own default applies instead."""


@dataclass(frozen=True)
class OriginalTrainer:
    """One of the original trainers."""

    name: str
    recipe: str
    package: str
    version: str
    positional: int
    """Number of keywords that may also be passed by position."""
    rules: tuple[Rule, ...]
    implied: tuple[Implied, ...] = ()


# --- conversions --------------------------------------------------------------------------------------------


def if_true(result: Any, notice: str = "") -> Callable[[bool], Any]:
    """Conversion of a flag: `result` for True, nothing for False."""

    def convert(flag: bool) -> Any:
        if not flag:
            return SKIP
        return Noted(result, notice) if notice else result

    return convert


# --- kinds of rules -----------------------------------------------------------------------------------------


def to_key(keyword: str, default: Any, key: str, kind: Kind, explanation: str, convert: Converter = same) -> Rule:
    return Rule(keyword, default, explanation, keys=(key,), kind=kind, convert=convert)


def to_argument(keyword: str, default: Any, argument: str, explanation: str, kind: Kind | None = None) -> Rule:
    return Rule(keyword, default, explanation, argument=argument, kind=kind)


def to_parts(keyword: str, parts: tuple[Rule, ...], default: Any = MappingProxyType({})) -> Rule:
    return Rule(keyword, dict(default), "For its entries see [below](#entries-of-dictionaries).", parts=parts)


def no_effect(keyword: str, default: Any, fits: tuple[Any, ...], why: str) -> Rule:
    return Rule(keyword, default, _sentence(why), always=why, fits=fits)


def refuse(keyword: str, default: Any, fits: tuple[Any, ...], why: str) -> Rule:
    return Rule(keyword, default, _sentence(why), refused=why, fits=fits)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
