"""Owns what the verbs share: words they all take, what they say, and opening a trained model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet.common.logging import say

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Any key of `quintet config RECIPE`.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
ModelReference = Annotated[str, typer.Argument(metavar="RUN", help="A run, RUN@step, RUN@best, or an exported folder.")]


def print_line(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


ANY_TEXT = '"…"'
"""In a command that is shown, where a text is to be put."""


def print_next(*commands: Sequence[object]) -> None:
    """Every command ends by printing the next useful one, so that it can be pasted."""
    for words in commands:
        shown = (str(word) if word == ANY_TEXT else shlex.quote(str(word)) for word in words)
        print_line(f"next: quintet {' '.join(shown)}")


def say_left_out(skipped: Mapping[str, str]) -> None:
    for file, reason in skipped.items():
        say(f"left out: {file} ({reason})")


def open_model(reference: str) -> Any:
    """A trained model; what was wrong with newer checkpoints is said."""
    from quintet import runs

    trained = runs.open_trained(reference)
    for problem in trained.problems:
        say(f"damaged checkpoint passed over: {problem}")
    return trained
