"""`TrainerOptions`: the keyword arguments that every trainer of Python takes, and how their values become keys."""

# Without `from __future__ import annotations`, which would hide `Required` from the TypedDict.

import difflib
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, cast, get_type_hints

from quintet.config import expand, flatten
from quintet.errors import UsageError


class MapDataset(Protocol):
    """A map-style data set: items by number, and a length."""

    def __getitem__(self, index: int, /) -> Any: ...


class TrainerOptions(TypedDict, total=False):
    """What every trainer takes by keyword. None stands for an option that is not given."""

    data: Required[str | Path | MapDataset]
    """A folder of files, or a data set object."""
    validation: str | Path | MapDataset | None
    """A folder or data set object to validate on, instead of a split of `data`."""
    declared: Sequence[str] | None
    """The names of the values in the tuples of a data set object."""
    out: str | Path | None
    """The run folder; `runs/<recipe>-<n>` by default."""
    resume: bool | None
    """Continue the run in `out`."""
    preset: str | None
    """`debug`, `small` or `base`."""
    lr_schedule: Callable[[int], float] | None
    """The learning rate as a function of the step, instead of the one that `optim.*` describes."""
    steps: int | None
    """Optimizer steps of the run (`train.steps`)."""
    batch_size: int | None
    """Items of one optimizer step, over all processes and micro-batches (`train.batch_size`)."""
    grad_accum_steps: int | None
    """Micro-batches of one step (`train.grad_accum_steps`)."""
    lr: float | None
    """Peak learning rate (`optim.lr`)."""
    seed: int | None
    """Seed of weights, order and every random choice (`train.seed`)."""
    num_workers: int | None
    """Processes that read data (`data.num_workers`)."""
    config: Mapping[str, Any] | None
    """Any other keys of the recipe, dotted or nested: `{"ema.decay": 0.999}`."""


# --- possible values ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The possible values of a keyword. `accept` returns the value in plain form, or raises TypeError or ValueError."""

    phrase: str
    example: str
    accept: Callable[[Any], Any]


def integer(minimum: int, example: int, why: str = "") -> Kind:
    def accept(value: Any) -> int:
        # People write 1e5 for a number of steps, and numpy's integers are integers too.
        if isinstance(value, bool) or not isinstance(value, Integral | float):
            raise TypeError
        if not isfinite(value) or value != int(value) or value < minimum:
            raise ValueError
        return int(value)

    return Kind(f"a whole number of at least {minimum}{why}", str(example), accept)


def real(phrase: str, example: str, test: Callable[[float], bool]) -> Kind:
    def accept(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        if not isfinite(value) or not test(float(value)):
            raise ValueError
        return float(value)

    return Kind(phrase, example, accept)


def predicate(phrase: str, example: str, test: Callable[[Any], bool]) -> Kind:
    def accept(value: Any) -> Any:
        if not test(value):
            raise TypeError
        return value

    return Kind(phrase, example, accept)


STEPS = integer(1, 10_000)
POSITIVE = integer(1, 4)
CONTRASTIVE_BATCH = integer(2, 64, " (a contrastive loss compares items with each other)")
SEED = integer(0, 42)
WORKERS = integer(0, 2)
RATE = real("a number above 0", "3e-4", lambda value: value > 0)
FLAG = predicate("True or False", "True", lambda value: isinstance(value, bool))
FUNCTION = predicate("a function", "lambda step: 3e-4", callable)

KEYS: Mapping[str, tuple[str, Kind]] = {
    "steps": ("train.steps", STEPS),
    "batch_size": ("train.batch_size", POSITIVE),
    "grad_accum_steps": ("train.grad_accum_steps", POSITIVE),
    "lr": ("optim.lr", RATE),
    "seed": ("train.seed", SEED),
    "num_workers": ("data.num_workers", WORKERS),
}
"""The options that set one key, and what it takes."""


def check_value(trainer: str, written: str, value: Any, kind: Kind, target: str) -> Any:
    """The value in plain form; UsageError where it is impossible. `written` is how the person named it."""
    try:
        return kind.accept(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{trainer}: {written}={reprlib.repr(value)} is impossible; it sets {target}, which takes "
            f"{kind.phrase}, for example {written}={kind.example}"
        ) from None


def known_options(trainer: str, options: Mapping[str, Any], others: Iterable[str] = ()) -> TrainerOptions:
    """The options, if each is one; else TypeError, as Python's own. `others` are names that this trainer knows too."""
    known = get_type_hints(TrainerOptions)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*others, *known], n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{trainer}() got an unexpected keyword argument '{name}'{hint}")
    return cast("TrainerOptions", options)


def keys_from(trainer: str, options: TrainerOptions, batch_size: Kind = POSITIVE) -> dict[str, Any]:
    """The dotted keys that options set; UsageError where a value is impossible, or a key is set to two values.

    `batch_size` says which batch sizes are possible."""
    for name, kind in (("resume", FLAG), ("lr_schedule", FUNCTION)):
        if options.get(name) is not None:
            check_value(trainer, name, options.get(name), kind, f"the argument {name}")
    keys: dict[str, Any] = {}
    for name, (key, kind) in {**KEYS, "batch_size": ("train.batch_size", batch_size)}.items():
        if options.get(name) is not None:
            keys[key] = check_value(trainer, name, options.get(name), kind, key)
    config = options.get("config")
    if config is not None and not isinstance(config, Mapping):
        raise UsageError(f"{trainer}: config={reprlib.repr(config)} is impossible; it takes a dictionary")
    for key, value in flatten(expand(config or {})).items():
        if key in keys and keys[key] != value:
            (name,) = (name for name, (named, _) in KEYS.items() if named == key)
            raise UsageError(f"{trainer}: {name} and config both set {key}; give one of them")
        keys[key] = value
    return keys


def expanded_signature(constructor: Callable[..., None]) -> inspect.Signature:
    """The signature of a trainer, with each of its `**options` by name."""

    def default(name: str) -> Any:
        return inspect.Parameter.empty if name in TrainerOptions.__required_keys__ else None

    parameters: list[inspect.Parameter] = []
    for parameter in list(inspect.signature(constructor).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD and parameter.name == "options":
            parameters += [
                inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default(name), annotation=annotation)
                for name, annotation in get_type_hints(TrainerOptions).items()
            ]
        else:
            parameters.append(parameter)
    return inspect.Signature(parameters)
