"""Translates a call of an original trainer to quintet's keys and arguments.

`translate` applies the tables: a keyword becomes a key or an argument, or is refused with the reason. `announce` warns
once, and `add_defaults` adds the original defaults of what was left out.
"""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from quintet.compat.rules import REQUIRED, SKIP, Noted, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.shared import OWN
from quintet.config import expand, flatten
from quintet.errors import QuintetError, UsageError
from quintet.training.options import check_value

PAGE = "docs/migration.md"
TABLES = "docs/migration-tables.md"


class CompatibilityNotice(UserWarning):
    """Warning that lists what a call of an original package does differently here."""


@dataclass
class Translation:
    """Result of translating the keywords of a trainer."""

    trainer: OriginalTrainer
    overrides: dict[str, Any] = field(default_factory=dict)
    """Dotted keys and their values."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of quintet's trainer: `model`, `data`, `validation`, `declared`, `out`, `preset` and the like."""
    notices: list[str] = field(default_factory=list)
    """What differs from the original, for the user."""
    sources: dict[str, str] = field(default_factory=dict)
    """Key or argument to the keyword that set it."""


# --- translating --------------------------------------------------------------------------------------------


def translate(trainer: str, keywords: Mapping[str, Any], positional: Sequence[Any] = ()) -> Translation:
    """The keys and arguments for a call of a trainer; raises UsageError for unknown, refused or invalid keywords.

    None means that a keyword was not given, as in the originals.
    """
    if trainer not in TRAINERS:
        raise UsageError(f"unknown trainer '{trainer}'; known: {', '.join(TRAINERS)}")
    original = TRAINERS[trainer]
    rules = {rule.keyword: rule for rule in (*OWN, *original.rules)}
    translation = Translation(original)
    everything = {**_by_position(original, keywords, positional), **keywords}
    replaced = {rules[keyword].replaces for keyword, value in everything.items() if keyword in rules and value is True}
    for keyword, value in everything.items():
        if keyword not in rules:
            raise UsageError(_unknown(original, keyword, rules))
        if keyword not in replaced:
            _apply(translation, rules[keyword], keyword, value)
    _scale_to_steps(translation, rules)
    return translation


def add_defaults(translation: Translation, given: Collection[str]) -> dict[str, Any]:
    """Add the original defaults of keywords that were left out; returns the keys that the original always has.

    A key that was set in another way, such as by `config`, is left as it is. `given` are the keywords of the call.
    """
    defaults = Translation(translation.trainer)
    for rule in translation.trainer.rules:
        if rule.keyword not in given and (not rule.only_with or rule.only_with in given):
            for each in rule.parts or (rule,):
                if each.keys and each.default is not REQUIRED:
                    _apply(defaults, each, each.keyword, each.default)
    defaults.overrides = {k: v for k, v in defaults.overrides.items() if k not in translation.overrides}
    accumulation = translation.overrides.get("train.grad_accum_steps", 1)
    for rule in translation.trainer.rules:
        if rule.times_accumulation and rule.keys[0] in defaults.overrides:
            defaults.overrides[rule.keys[0]] *= accumulation
    translation.overrides = {**defaults.overrides, **translation.overrides}
    return {each.key: each.value for each in translation.trainer.implied if each.unless not in given}


def positional_names(trainer: OriginalTrainer, positional: Sequence[Any]) -> dict[str, Any]:
    """Positional values by the original keyword."""
    return {rule.keyword: value for rule, value in zip(trainer.rules, positional, strict=False)}


def scale_to_processes(translation: Translation, is_total: bool, world_size: int) -> None:
    """Convert a batch size of one process, as in the originals, to that of all processes; `is_total` says it is."""
    before = translation.overrides.get("train.batch_size")
    if before is None or is_total or world_size == 1 or translation.sources["train.batch_size"] != "batch_size":
        return
    translation.overrides["train.batch_size"] = before * world_size


@contextmanager
def in_original_words(trainer: OriginalTrainer, accumulation: int) -> Iterator[None]:
    """Errors inside name the keywords of the original instead of quintet's keys."""
    words = {rule.keys[0]: rule.keyword for rule in trainer.rules if len(rule.keys) == 1 and "." in rule.keys[0]}
    if accumulation > 1:
        scaled = (rule for rule in trainer.rules if rule.times_accumulation)
        words |= {rule.keys[0]: f"{rule.keyword} x grad_accum_every" for rule in scaled}
    try:
        yield
    except QuintetError as error:
        text = str(error)
        for key, keyword in words.items():
            text = re.sub(rf"(?<![\w.]){re.escape(key)}(?![\w.])", keyword, text)
        raise type(error)(text) from None


def check_required(translation: Translation) -> None:
    """Raise UsageError for a number that the original has no default for."""
    for rule in translation.trainer.rules:
        is_missing = rule.default is REQUIRED and rule.keys and rule.keys[0] not in translation.overrides
        if is_missing and rule.keyword != "grad_accum_every":
            raise UsageError(f"{translation.trainer.name} needs {rule.keyword}, which has no default")


def announce(translation: Translation) -> None:
    """Emit one warning for what differs in the call, at the line of the caller; a name of its own is no difference."""
    if not translation.notices:
        return
    text = f"{translation.trainer.name}: {'; '.join(translation.notices)} (see {PAGE})"
    warnings.warn(text, CompatibilityNotice, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """The `stacklevel` of the first frame outside of quintet, counted from `announce`."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "quintet":
        frame = frame.f_back
        level += 1
    return level


def _by_position(trainer: OriginalTrainer, keywords: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """Positional values by name; by quintet's name if it has one, so that `Trainer(model, …)` causes no warning."""
    allowed = trainer.rules[: trainer.positional]
    if len(positional) > len(allowed):
        listed = ", ".join(rule.keyword for rule in allowed)
        raise UsageError(
            f"{trainer.name} takes {len(allowed)} positional argument(s) ({listed}); pass the others by keyword"
        )
    named = {}
    for rule, value in zip(allowed, positional, strict=False):
        if rule.keyword in keywords or rule.argument in keywords:
            raise UsageError(f"{trainer.name} got '{rule.keyword}' both by position and by keyword; pass it once")
        named[rule.argument or rule.keyword] = value
    return named


def _apply(translation: Translation, rule: Rule, where: str, value: Any) -> None:
    """Apply the rule of one keyword, or of one entry of a dictionary; `where` is its name in messages."""
    if value is None and not rule.keeps_none:
        return
    if rule.parts:
        _apply_parts(translation, rule, value)
    elif rule.spread:
        for key, part in flatten(expand(_mapping(translation, where, value))).items():
            _put(translation, translation.overrides, key, part, where)
    elif rule.refused:
        if not _is_one_of(value, rule.fits):
            raise UsageError(f"{translation.trainer.name}: {_written(where, value)} is refused: {rule.refused}")
    elif rule.always:
        if not _is_one_of(value, rule.fits):
            translation.notices.append(f"{_written(where, value)} has no effect: {rule.always}")
    else:
        _set(translation, rule, where, value)


def _apply_parts(translation: Translation, rule: Rule, value: Any) -> None:
    known = {part.keyword: part for part in rule.parts}
    for name, part in _mapping(translation, rule.keyword, value).items():
        where = f"{rule.keyword}[{name!r}]"
        if name not in known:
            hint = _nearest(str(name), known)
            raise UsageError(f"{translation.trainer.name}: {where} is unknown{hint}; {TABLES} lists all entries")
        _apply(translation, known[name], where, part)


def _set(translation: Translation, rule: Rule, where: str, value: Any) -> None:
    converted = rule.convert(_checked(translation, rule, where, value)) if value is not None else None
    if converted is SKIP:
        return
    if isinstance(converted, Noted):
        translation.notices.append(f"{_written(where, value)}: {converted.notice}")
        converted = converted.value
    for key in rule.keys:
        _put(translation, translation.overrides, key, converted, where)
    if rule.argument:
        _put(translation, translation.arguments, rule.argument, converted, where)


def _checked(translation: Translation, rule: Rule, where: str, value: Any) -> Any:
    if rule.kind is None:
        return value
    target = " and ".join(rule.keys) or f"the argument {rule.argument}"
    return check_value(translation.trainer.name, where, value, rule.kind, target)


def _put(translation: Translation, target: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Store a value; two keywords for the same key are an error, unless their values are equal."""
    if name in target:
        agree = target is translation.overrides and bool(target[name] == value)
        if not agree:
            first = translation.sources[name]
            raise UsageError(f"{translation.trainer.name}: {first} and {where} both set {name}; pass only one of them")
    target[name] = value
    translation.sources[name] = where


def _scale_to_steps(translation: Translation, rules: Mapping[str, Rule]) -> None:
    """Convert counts per micro-batch, as in the originals, to counts per optimizer step."""
    if translation.sources.get("train.grad_accum_steps") != "grad_accum_every":
        return
    factor = translation.overrides["train.grad_accum_steps"]
    for rule in rules.values():
        if not rule.times_accumulation or factor == 1:
            continue
        (key,) = rule.keys
        if translation.sources.get(key) == rule.keyword:
            translation.overrides[key] *= factor


def _mapping(translation: Translation, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{translation.trainer.name}: {_written(where, value)} is invalid; expected a dictionary")
    return value


def _is_one_of(value: Any, fits: Iterable[Any]) -> bool:
    # Compares types first: 1 is not True, and other objects may not support comparison.
    return any(value is fit or (type(value) is type(fit) and bool(value == fit)) for fit in fits)


def _written(where: str, value: Any) -> str:
    return f"{where}={reprlib.repr(value)}"


def _unknown(trainer: OriginalTrainer, keyword: str, rules: Mapping[str, Rule]) -> str:
    """Message for an unknown keyword; suggests one with the same meaning, or else one with a similar spelling."""
    targets = {
        target
        for other in TRAINERS.values()
        for rule in other.rules
        if rule.keyword == keyword
        for target in (*rule.keys, rule.argument)
        if target
    }
    same_target = [name for name, rule in rules.items() if targets.intersection((*rule.keys, rule.argument))]
    hint = f"; did you mean '{same_target[0]}'?" if same_target else _nearest(keyword, rules)
    listed = "" if hint else f"; it has {', '.join(rules)}"
    return f"{trainer.name} has no keyword '{keyword}'{hint}{listed} (pass other keys in `config`; see {TABLES})"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
