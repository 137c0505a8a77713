"""`--budget`: the keys that follow from the time of a training, its data and the measured time of a step.

A budget is wall-clock time of training. Sizes and learning rates are those of the preset. Keys of the user always win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.config.run import RunConfig
from quintet.config.section import migrated
from quintet.config.tree import Tree, expand, flatten, read_yaml
from quintet.errors import UsageError

PRESET = "small"
"""The preset of a run with a budget, unless the user names another one."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MAX_HOURS = 10_000

LENGTH_KEYS = ("train.steps", "train.minutes", "train.epochs")
"""Keys that say how long a run is, which a budget does."""
SCHEDULE_KEYS = ("optim.decay_steps", "optim.decay_extensions", "optim.scheduler")
"""Keys of a schedule of another length than the run."""
STEP_KEYS = ("loss.discriminator_start", "loss.discriminator_ramp")
"""Keys in steps that keep their fraction of the run."""
NUM_EVALUATIONS = 4
"""Number of validations, sets of samples and checkpoints of a run, including the last."""
SHORT = 300.0
"""Seconds of a short run, in which only the last step validates and samples: they could take half of the time."""
MAX_WARMUP = 1 / 5
"""The largest fraction of a run that warms up."""
FRACTION = 0.99
"""The fraction of the budget that is planned, so that the last step ends within it."""


@dataclass(frozen=True)
class Budget:
    """The argument of `--budget`, and the keys that the user has set."""

    text: str
    seconds: float
    given: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        text: str,
        schema: type[RunConfig],
        file: Path | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Budget:
        """A budget beside the other arguments of `quintet train`; UsageError if they contradict it."""
        seconds = parse_seconds(text)
        keys = flatten(expand(overrides or {}))
        if file is not None:
            keys = {**flatten(migrated(schema, read_yaml(file))), **keys}
        given = {key: value for key, value in keys.items() if value not in (None, ())}
        for key in (*LENGTH_KEYS, *SCHEDULE_KEYS):
            if given.get(key):
                sets = "the length of the run" if key in LENGTH_KEYS else "the end of the learning rate schedule"
                raise UsageError(f"--budget {text} sets {sets}: leave out {key}={given[key]}, or leave out --budget")
        return cls(text, seconds, frozenset(keys))

    def batch_keys(self, config: RunConfig, num_items: int, minimum: int, multiple: int) -> Tree:
        """The batch size, if that of the preset has more items than there are: the next smaller power of two.

        It is at least `minimum`, and divisible by `multiple` processes and micro-batches."""
        size = config.train.batch_size
        while size > max(num_items, minimum, multiple):
            size = 1 << (size - 1).bit_length() - 1
        return self._free({"train.batch_size": size}) if size % multiple == 0 else {}

    def length_keys(self, config: RunConfig, seconds_per_step: float) -> Tree:
        """The number of steps, and the keys that follow from it; `config` has those of the preset."""
        steps = max(1, int(FRACTION * self.seconds / seconds_per_step))
        known = flatten(config.model_dump(mode="json"))
        scaled = {key: max(1, round(known[key] * steps / config.train.steps)) for key in STEP_KEYS if known.get(key)}
        part = -(-steps // NUM_EVALUATIONS)
        # Beyond the end, also if the number of steps is corrected.
        shown = 2 * steps if self.seconds < SHORT else part
        every = {"eval.every": shown, "sample.every": shown, "checkpoint.every": part}
        warmup = {"optim.warmup_steps": min(config.optim.warmup_steps, int(MAX_WARMUP * steps))}
        minutes = {"train.minutes": round(self.seconds / 60, 6)}
        return {"train.steps": steps, **minutes, **self._free({**warmup, **scaled, **every})}

    def describe(self, config: RunConfig) -> str:
        """What a run with this budget is: its sizes, its batch and learning rate, and its length."""
        values = flatten(config.model_dump(mode="json"))
        preset = flatten(config.PRESETS.get(config.preset or "", {}))
        sizes = [key for key in values if key in preset and _is_size(key)]
        keys = [*sizes, "train.batch_size", "optim.lr", "train.steps", "train.minutes"]
        return f"--budget {self.text}: {' '.join(f'{key}={_plain(values[key])}' for key in keys)}"

    def _free(self, keys: Mapping[str, Any]) -> Tree:
        """The keys that the user has not set."""
        return {key: value for key, value in keys.items() if key not in self.given}


def parse_seconds(text: str) -> float:
    """The seconds of a time such as `90s`, `10m` or `1.5h`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])", text, re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 1 <= seconds <= 3600 * MAX_HOURS:
        raise UsageError(
            f"--budget {text}: give a time such as 90s, 10m or 1.5h, of at least 1s and at most {MAX_HOURS}h"
        )
    return seconds


def _is_size(key: str) -> bool:
    return key.startswith("model.") and key.rpartition(".")[2].rpartition("_")[2] in ("dim", "dims", "depth", "layers")


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")
