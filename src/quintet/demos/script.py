"""Owns what every demo is made of: public commands on embedded data, printed as they run.

What stands already is passed over, so that an interrupted demo goes on where it was.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Script:
    """Runs commands of `quintet` in this process and says what it does."""

    call: Callable[[Sequence[str]], int]
    say: Callable[[str], None]

    def run(self, *words: str) -> None:
        self.say(f"\n$ quintet {shlex.join(words)}")
        self.call(words)

    def make(self, kind: str, data: Path, num: int, *words: str) -> None:
        if not (data / "metadata.jsonl").exists():
            self.run("data", "make", kind, str(data), "--num", str(num), *words)

    def train(self, recipe: str, data: Path, run: Path, steps: int, *words: str) -> None:
        """Up to `steps`: a new run by these words, or one that was interrupted."""
        if not (run / "config.yaml").exists():
            self.run("train", recipe, str(data), "--out", str(run), "--preset", "small", *words)
        if steps_taken(run) < steps:
            self.run("resume", str(run), f"train.steps={steps}")

    def sample(self, run: Path, texts: Sequence[str], num: int, out: Path) -> None:
        if not (out / "samples.jsonl").exists():
            self.run(
                "sample",
                str(run),
                *(word for text in texts for word in ("--text", text)),
                "--num",
                str(num),
                "--out",
                str(out),
            )


def every(steps: int) -> tuple[str, ...]:
    """How often a run looks at itself and saves."""
    return tuple(f"{what}.every={steps}" for what in ("eval", "sample", "checkpoint"))


def steps_taken(run: Path) -> int:
    try:
        return int(json.loads((run / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return 0


def figures(run: Path) -> dict[str, Any]:
    """What the last `quintet eval` of a run wrote."""
    found: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return found
