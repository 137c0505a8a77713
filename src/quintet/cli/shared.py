"""Arguments, printed lines and model loading that the commands share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet import config as configs
from quintet.common.logging import say
from quintet.common.printable import printable_lines
from quintet.errors import UsageError

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]…", help="Any configuration key; `quintet config RECIPE` lists them."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
ModelReference = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run folder, RUN@STEP, RUN@best, exported folder, starter:NAME, or hub:USER/NAME."
    ),
]


def print_line(text: str = "") -> None:
    """Print a message of a command that does something else: nothing depends on whether it can be printed."""
    with suppress(OSError):
        print_result(text)


def print_result(text: str = "") -> None:
    """Print the result of a command, with escapes for the control characters of names.

    Raises OSError if nobody reads it or the disk is full.
    """
    sys.stdout.write(printable_lines(text) + "\n")
    sys.stdout.flush()


ANY_TEXT = '"…"'
"""Placeholder of a text in a printed command."""


def print_next(*commands: Sequence[object]) -> None:
    """Print the next useful commands, ready to paste."""
    for words in commands:
        shown = (str(word) if word == ANY_TEXT else shlex.quote(str(word)) for word in words)
        print_line(f"next: quintet {' '.join(shown)}")


def say_skipped(skipped: Mapping[str, str]) -> None:
    for file, reason in skipped.items():
        say(f"skipped: {file} ({reason})")


def open_model(reference: str) -> Any:
    """Open a pipeline; imports torch only here."""
    from quintet.common.allocator import keep_freed_memory
    from quintet.pipelines.loading import open_pipeline

    keep_freed_memory()
    return open_pipeline(reference)


def with_keys(pipeline: Any, overrides: Sequence[str] | None, sections: Sequence[str]) -> Any:
    """The pipeline with changed keys; only keys of `sections` can be changed after training."""
    changes = configs.parse_overrides(overrides or [])
    for key in changes:
        if key.split(".")[0] not in sections:
            allowed = " and ".join(f"{section}.*" for section in sections)
            raise UsageError(f"'{key}' cannot be changed here: a trained model takes only keys of {allowed}")
    return pipeline.with_keys(changes)
