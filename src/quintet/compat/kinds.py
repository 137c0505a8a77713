"""Kinds of values of the original trainers' keywords, in addition to those of `quintet.training.options`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quintet.training.options import Kind, integer, predicate, real


def choice(*known: str) -> Kind:
    def accept(value: Any) -> str:
        name = _name_of(value)
        if name not in known:
            raise ValueError
        return name

    return Kind(f"one of {', '.join(map(repr, known))}", repr(known[-1]), accept)


def _name_of(value: Any) -> str:
    """The name in lower case; the value may be a text or a member of an enumeration."""
    return str(getattr(value, "value", value)).lower()


def _accept_betas(value: Any) -> tuple[float, float]:
    first, second = (FRACTION.accept(each) for each in value)
    return first, second


def _accept_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError
    texts = tuple(value)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    return texts


def _accept_texts_file(value: Any) -> tuple[str, ...]:
    try:
        lines = Path(value).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError from error
    return _accept_texts(line for line in lines if line.strip())


def _accept_trackers(value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list | tuple) else (value,)
    return tuple(choice("tensorboard", "wandb", "trackio").accept(each) for each in listed)


INTERVAL = integer(1, 1000)
COUNT = integer(0, 100)
NORM = real("a number greater than 0, or None to disable clipping", "0.5", lambda value: value > 0)
NOT_NEGATIVE = real("a number of at least 0", "0.0", lambda value: value >= 0)
FRACTION = real("a number from 0 to below 1", "0.05", lambda value: 0 <= value < 1)
DECAY = real("a number between 0 and 1, both excluded", "0.995", lambda value: 0 < value < 1)
FRAMES = integer(1, 17)
PRECISION = choice("no", "fp16", "bf16")
BACKEND = choice("no", "inductor")
BETAS = Kind("two numbers from 0 to below 1", "(0.9, 0.99)", _accept_betas)
TEXTS = Kind("a list of captions", "['a red circle']", _accept_texts)
TEXTS_FILE = Kind("a readable text file with one caption per line", "'captions.txt'", _accept_texts_file)
TRACKERS = Kind("'tensorboard', 'wandb' or 'trackio', or a list of them", "'wandb'", _accept_trackers)
SCHEDULER = predicate(
    "a scheduler class of torch, such as torch.optim.lr_scheduler.StepLR",
    "StepLR",
    lambda value: isinstance(value, type) and hasattr(value, "step"),
)
OPTIONS = predicate("a dictionary", "{'step_size': 1000}", lambda value: isinstance(value, Mapping))
