"""`TrainerOptions`: the keyword arguments of every Python trainer, and their translation to configuration keys."""

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
    """A map-style data set with `__getitem__` and `__len__`."""

    def __getitem__(self, index: int, /) -> Any: ...


class TrainerOptions(TypedDict, total=False):
    """Keyword arguments of every trainer. None means that an option is not set."""

    data: Required[str | Path | MapDataset]
    """A folder of files, or a data set object."""
    validation: str | Path | MapDataset | None
    """A folder or data set object to validate on, instead of a split of `data`."""
    declared: Sequence[str] | None
    """Names of the tuple elements that a data set object returns."""
    out: str | Path | None
    """The run folder; `runs/<recipe>-<n>` by default."""
    resume: bool | None
    """Continue the run in `out`."""
    preset: str | None
    """`debug`, `small` or `base`."""
    lr_schedule: Callable[[int], float] | None
    """The learning rate as a function of the step; replaces the schedule of `optim.*`."""
    steps: int | None
    """Number of optimizer steps (`train.steps`)."""
    batch_size: int | None
    """Items per optimizer step, over all processes and micro-batches (`train.batch_size`)."""
    grad_accum_steps: int | None
    """Micro-batches per optimizer step (`train.grad_accum_steps`)."""
    lr: float | None
    """Peak learning rate (`optim.lr`)."""
    seed: int | None
    """Seed of the weights, the order of items and all random choices (`train.seed`)."""
    num_workers: int | None
    """Number of data loading processes (`data.num_workers`)."""
    config: Mapping[str, Any] | None
    """Other keys of the recipe, dotted or nested: `{"ema.decay": 0.999}`."""


# --- possible values ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The valid values of an option. `accept` returns a plain Python value, or raises TypeError or ValueError."""

    phrase: str
    example: str
    accept: Callable[[Any], Any]


def integer(minimum: int, example: int, reason: str = "") -> Kind:
    """Integers of at least `minimum`; floats with an integer value are accepted."""

    def accept(value: Any) -> int:
        # Accept 1e5 as a number of steps, and numpy integers.
        if isinstance(value, bool) or not isinstance(value, Integral | float):
            raise TypeError
        if not isfinite(value) or value != int(value) or value < minimum:
            raise ValueError
        return int(value)

    return Kind(f"an integer of at least {minimum}{reason}", str(example), accept)


def real(phrase: str, example: str, test: Callable[[float], bool]) -> Kind:
    """Finite numbers for which `test` is True; `phrase` describes them."""

    def accept(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        if not isfinite(value) or not test(float(value)):
            raise ValueError
        return float(value)

    return Kind(phrase, example, accept)


def predicate(phrase: str, example: str, test: Callable[[Any], bool]) -> Kind:
    """Any values for which `test` is True; `phrase` describes them."""

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
"""Options that set a single key: the key and its valid values."""


def check_value(trainer: str, name: str, value: Any, kind: Kind, target: str) -> Any:
    """The value as a plain Python type; UsageError if it is invalid. `name` is the name of the option."""
    try:
        return kind.accept(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{trainer}: {name}={reprlib.repr(value)} is invalid; it sets {target}, which takes "
            f"{kind.phrase}, for example {name}={kind.example}"
        ) from None


def known_options(trainer: str, options: Mapping[str, Any], others: Iterable[str] = ()) -> TrainerOptions:
    """Check the names of options; TypeError for an unknown name, as for any Python function.

    `others` are further names that this trainer accepts."""
    known = get_type_hints(TrainerOptions)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, [*others, *known], n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{trainer}() got an unexpected keyword argument '{name}'{hint}")
    return cast("TrainerOptions", options)


def keys_from(trainer: str, options: TrainerOptions, batch_size: Kind = POSITIVE) -> dict[str, Any]:
    """The dotted keys that options set; UsageError if a value is invalid or a key is set to two values.

    `batch_size` describes the valid batch sizes."""
    for name, kind in (("resume", FLAG), ("lr_schedule", FUNCTION)):
        if options.get(name) is not None:
            check_value(trainer, name, options.get(name), kind, f"the argument {name}")
    keys: dict[str, Any] = {}
    for name, (key, kind) in {**KEYS, "batch_size": ("train.batch_size", batch_size)}.items():
        if options.get(name) is not None:
            keys[key] = check_value(trainer, name, options.get(name), kind, key)
    config = options.get("config")
    if config is not None and not isinstance(config, Mapping):
        raise UsageError(f"{trainer}: config={reprlib.repr(config)} is invalid; it takes a dictionary")
    for key, value in flatten(expand(config or {})).items():
        if key in keys and keys[key] != value:
            (option,) = (option for option, (target, _) in KEYS.items() if target == key)
            raise UsageError(f"{trainer}: {option} and config both set {key}; use one of them")
        keys[key] = value
    return keys


def expanded_signature(constructor: Callable[..., None]) -> inspect.Signature:
    """The signature of a trainer with `**options` expanded to the fields of `TrainerOptions`."""

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
