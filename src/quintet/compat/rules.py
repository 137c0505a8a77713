"""Rules: what happens to one keyword of an original trainer, and the ways such a rule can go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from quintet.training.options import Kind

REQUIRED: Final = object()
"""Stands for the default of a keyword that has none."""
SKIP: Final = object()
"""What a conversion returns when the value asks for nothing."""


@dataclass(frozen=True)
class Noted:
    """A converted value about which something should be said."""

    value: Any
    notice: str


Converter = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Rule:
    """What happens to one keyword. Exactly one of `keys`, `argument`, `parts`, `spread`, `refused`, `always` is set."""

    keyword: str
    default: Any
    """The original's default, a fact for the page."""
    explanation: str
    """One sentence, for people who move."""
    keys: tuple[str, ...] = ()
    """The dotted keys that take the value."""
    argument: str = ""
    """The argument of quintet's trainer that takes the value."""
    parts: tuple[Rule, ...] = ()
    """The value is a dictionary; these are the rules of its entries."""
    spread: bool = False
    """The value is a mapping of quintet's own keys."""
    refused: str = ""
    """Why it cannot be, and what to do instead; for any value but those in `fits`."""
    always: str = ""
    """Why it has no effect here; said for any value but those in `fits`."""
    fits: tuple[Any, ...] = ()
    kind: Kind | None = None
    convert: Converter = same
    keeps_none: bool = False
    """None is a value of its own here, not the absence of one."""
    times_accumulation: bool = False
    """The original counts in micro-batches; with `grad_accum_every` the number grows by that factor."""


@dataclass(frozen=True)
class OriginalTrainer:
    """One of the six trainers people come from."""

    name: str
    recipe: str
    package: str
    version: str
    positional: int
    """How many of its first keywords may also be given by position."""
    rules: tuple[Rule, ...]


# --- conversions --------------------------------------------------------------------------------------------


def if_true(wanted: Any, notice: str = "") -> Callable[[bool], Any]:
    """True asks for a value of the key; False asks for nothing."""

    def convert(flag: bool) -> Any:
        if not flag:
            return SKIP
        return Noted(wanted, notice) if notice else wanted

    return convert


# --- the ways a rule can go ---------------------------------------------------------------------------------


def to_key(keyword: str, default: Any, key: str, kind: Kind, explanation: str, convert: Converter = same) -> Rule:
    return Rule(keyword, default, explanation, keys=(key,), kind=kind, convert=convert)


def to_argument(keyword: str, default: Any, argument: str, explanation: str, kind: Kind | None = None) -> Rule:
    return Rule(keyword, default, explanation, argument=argument, kind=kind)


def to_parts(keyword: str, parts: tuple[Rule, ...], default: Any = MappingProxyType({})) -> Rule:
    return Rule(keyword, dict(default), "Its entries are in a table [below](#entries-of-dictionaries).", parts=parts)


def no_effect(keyword: str, default: Any, fits: tuple[Any, ...], why: str) -> Rule:
    return Rule(keyword, default, _sentence(why), always=why, fits=fits)


def refuse(keyword: str, default: Any, fits: tuple[Any, ...], why: str) -> Rule:
    return Rule(keyword, default, _sentence(why), refused=why, fits=fits)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
