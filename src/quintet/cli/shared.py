"""Owns what the verbs share: words they all take, what they say, and opening a trained model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet import config as configs
from quintet.common.logging import say
from quintet.errors import UsageError

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
    """A pipeline, with the import of torch that it takes."""
    from quintet.pipelines.loading import open_pipeline

    return open_pipeline(reference)


def with_keys(pipeline: Any, overrides: Sequence[str] | None, sections: Sequence[str]) -> Any:
    """A pipeline under other keys, where they change how it is used, not what it is."""
    changes = configs.parse_overrides(overrides or [])
    for key in changes:
        if key.split(".")[0] not in sections:
            known = " and ".join(f"{section}.*" for section in sections)
            raise UsageError(f"a trained model takes keys of {known} here, not '{key}'")
    return pipeline.with_keys(changes)
