"""Translates a call of an original trainer to quintet's keys and arguments.

`translate` applies the tables: a keyword becomes a key or an argument, or is refused with the reason. `announce` says
it once, and `own_arguments` does both for the trainers of `quintet.compat.<package>`.
"""

from __future__ import annotations

import difflib
import reprlib
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintet.compat.rules import SKIP, Noted, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.shared import OWN
from quintet.config import expand, flatten
from quintet.errors import UsageError
from quintet.training.options import check_value

OWN_NAMES = frozenset(rule.keyword for rule in OWN)
PAGE = "docs/migration.md"


class CompatibilityNotice(UserWarning):
    """Keywords of an original trainer were understood; the message says as what."""


@dataclass
class Translation:
    """What a trainer's keywords mean in quintet."""

    trainer: OriginalTrainer
    overrides: dict[str, Any] = field(default_factory=dict)
    """Dotted keys and their values."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of quintet's trainer: `model`, `data`, `validation`, `declared`, `out`, `preset` and the like."""
    notices: list[str] = field(default_factory=list)
    """What a person should know beside the new names."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Original keyword to key or argument, in the order given."""
    sources: dict[str, str] = field(default_factory=dict)
    """Key or argument to the keyword that set it."""

    @property
    def foreign(self) -> bool:
        """Whether anything but quintet's own keywords was used."""
        return bool(self.notices) or any(keyword not in OWN_NAMES for keyword in self.renamed)


# --- translating --------------------------------------------------------------------------------------------


def translate(trainer: str, keywords: Mapping[str, Any], positional: Sequence[Any] = ()) -> Translation:
    """The keys and arguments that a call of a trainer asks for; UsageError for what is unknown, refused or impossible.

    None stands for a keyword that was not given, as it does in the originals.
    """
    if trainer not in TRAINERS:
        raise UsageError(f"unknown trainer '{trainer}'; known: {', '.join(TRAINERS)}")
    original = TRAINERS[trainer]
    rules = {rule.keyword: rule for rule in (*OWN, *original.rules)}
    translation = Translation(original)
    given = {**_named(original, keywords, positional), **keywords}
    for keyword, value in given.items():
        if keyword not in rules:
            raise UsageError(_unknown(original, keyword, rules))
        _apply(translation, rules[keyword], keyword, value)
    _count_whole_steps(translation, rules)
    return translation


def own_arguments(
    trainer: str, positional: Sequence[Any], keywords: Mapping[str, Any], links: Sequence[str] = ()
) -> dict[str, Any]:
    """The arguments of quintet's own trainer that a call of the original asks for, announced.

    `links` are names of frozen models, which no original has: they pass as they are."""
    passed = {name: keywords[name] for name in links if name in keywords}
    asked = translate(trainer, {name: keywords[name] for name in keywords if name not in passed}, positional)
    announce(asked)
    return {"model": None, **asked.arguments, "config": asked.overrides, **passed}


def announce(translation: Translation) -> None:
    """One warning for the whole call, at the line of the caller; none for quintet's own keywords."""
    if not translation.foreign:
        return
    trainer = translation.trainer
    sentences = [*translation.notices]
    if translation.renamed:
        listed = ", ".join(f"{keyword} -> {target}" for keyword, target in translation.renamed.items())
        sentences.insert(0, f"keywords of {trainer.package} translated: {listed}")
    text = f"{trainer.name}: {'; '.join(sentences)} (see {PAGE})"
    warnings.warn(text, CompatibilityNotice, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """How far up the first frame outside quintet is, as `warnings.warn` counts from `announce`."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "quintet":
        frame = frame.f_back
        level += 1
    return level


def _named(trainer: OriginalTrainer, keywords: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """Values by position, under quintet's names where it has them: `Trainer(model, …)` is nobody's old habit."""
    allowed = trainer.rules[: trainer.positional]
    if len(positional) > len(allowed):
        listed = ", ".join(rule.keyword for rule in allowed)
        raise UsageError(f"{trainer.name} takes {len(allowed)} value(s) by position ({listed}); name the others")
    named = {}
    for rule, value in zip(allowed, positional, strict=False):
        if rule.keyword in keywords or rule.argument in keywords:
            raise UsageError(f"{trainer.name} got '{rule.keyword}' by position and by name; give it once")
        named[rule.argument or rule.keyword] = value
    return named


def _apply(translation: Translation, rule: Rule, where: str, value: Any) -> None:
    """One keyword, or one entry of a dictionary; `where` is how the person wrote it."""
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
            raise UsageError(f"{translation.trainer.name}: {where} is not known{hint}; {PAGE} lists what is")
        _apply(translation, known[name], where, part)


def _set(translation: Translation, rule: Rule, where: str, value: Any) -> None:
    plain = rule.convert(_checked(translation, rule, where, value)) if value is not None else None
    if plain is SKIP:
        return
    if isinstance(plain, Noted):
        translation.notices.append(f"{_written(where, value)}: {plain.notice}")
        plain = plain.value
    for key in rule.keys:
        _put(translation, translation.overrides, key, plain, where)
    if rule.argument:
        _put(translation, translation.arguments, rule.argument, plain, where)
    new = " and ".join(rule.keys) or rule.argument
    if rule not in OWN and where != new:
        translation.renamed[where] = new


def _checked(translation: Translation, rule: Rule, where: str, value: Any) -> Any:
    if rule.kind is None:
        return value
    target = " and ".join(rule.keys) or f"the argument {rule.argument}"
    return check_value(translation.trainer.name, where, value, rule.kind, target)


def _put(translation: Translation, target: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Two keywords for one thing are an error, unless they agree."""
    if name in target:
        agree = target is translation.overrides and bool(target[name] == value)
        if not agree:
            first = translation.sources[name]
            raise UsageError(f"{translation.trainer.name}: {first} and {where} both set {name}; give one of them")
    target[name] = value
    translation.sources[name] = where


def _count_whole_steps(translation: Translation, rules: Mapping[str, Rule]) -> None:
    """The originals count micro-batches and their size; quintet counts what a whole step takes."""
    if "grad_accum_every" not in translation.renamed:
        return
    factor = translation.overrides["train.grad_accum_steps"]
    for rule in rules.values():
        if not rule.times_accumulation or factor == 1:
            continue
        (key,) = rule.keys
        if translation.sources.get(key) == rule.keyword:
            before = translation.overrides[key]
            translation.overrides[key] = before * factor
            translation.notices.append(
                f"{rule.keyword}={before} with grad_accum_every={factor} is {key}={before * factor} here, "
                "where a whole optimizer step is counted"
            )


def _mapping(translation: Translation, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{translation.trainer.name}: {_written(where, value)} is impossible; it takes a dictionary")
    return value


def _is_one_of(value: Any, fits: Iterable[Any]) -> bool:
    # Of one type first: 1 is not True, and foreign objects need not know how to compare themselves.
    return any(value is fit or (type(value) is type(fit) and bool(value == fit)) for fit in fits)


def _written(where: str, value: Any) -> str:
    return f"{where}={reprlib.repr(value)}"


def _unknown(trainer: OriginalTrainer, keyword: str, rules: Mapping[str, Rule]) -> str:
    """The same thing under another trainer's name is nearer than the same letters."""
    targets = {
        target
        for other in TRAINERS.values()
        for rule in other.rules
        if rule.keyword == keyword
        for target in (*rule.keys, rule.argument)
        if target
    }
    meant = [name for name, rule in rules.items() if targets.intersection((*rule.keys, rule.argument))]
    hint = f"; did you mean '{meant[0]}'?" if meant else _nearest(keyword, rules)
    listed = "" if hint else f"; it knows {', '.join(rules)}"
    return f"{trainer.name} has no keyword '{keyword}'{hint}{listed} (other keys go into `config`; see {PAGE})"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
