"""Owns the verbs that tell and show what there is: `recipes`, `config`, `doctor`, `demo` and `version`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import quintet
from quintet import config as configs
from quintet import registry
from quintet.cli.shared import Overrides, print_line, print_next
from quintet.common.logging import say
from quintet.errors import UsageError


def list_recipes() -> None:
    """What can be trained, and what it needs."""
    for name, entry in registry.entries():
        python = f"; in Python {entry.trainer}" if entry.trainer else ""
        print_line(f"{name:<18} {entry.summary} (needs {entry.needs}{python})")
        for builtin in entry.builtin:
            print_line(f"{'':<18} `{builtin}` is one without training, wherever a trained one can be named")
    for problem in registry.problems():
        say(f"warning: {problem}")
    print_next(("config", "RECIPE"), ("demo", "image"))


def show_config(
    recipe: Annotated[str, typer.Argument(help="A recipe.")],
    overrides: Overrides = None,
    preset: Annotated[str | None, typer.Option(help="debug, small or base.")] = None,
) -> None:
    """Print every key of a recipe as commented YAML, ready for --config."""
    schema = registry.find(recipe).config_class()
    built = configs.build(schema, preset=preset, overrides=configs.parse_overrides(overrides or []))
    print_line(configs.describe(built).rstrip())


def doctor() -> None:
    """Versions, devices and optional parts of this installation."""
    from quintet.doctor import lines

    for line in lines():
        print_line(line)


def demo(
    medium: Annotated[
        Literal["image", "video", "audio", "mesh", "all"],
        typer.Argument(help="What to show; all: one after the other."),
    ] = "image",
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Minutes of training, shared by the stages; data, samples and evaluation take theirs besides."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Train to the figures in docs/results.md.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for data and runs; runs/demo-MEDIUM if not given.")] = None,
) -> None:
    """The whole way on embedded data: make, train, resume, sample, evaluate, look. Prints each command it runs."""
    from quintet import cli, demos
    from quintet.demos.demo import Form
    from quintet.demos.script import Script

    if full and minutes is not None:
        raise UsageError("--full and --minutes are two lengths of a demo: choose one")
    form, script = Form(full, minutes), Script(cli.call, print_line)
    folder = out or Path(f"runs/demo-{medium}")
    if medium == "all":
        demos.show_all(folder, form, script)
    else:
        demos.show(medium, folder, form, script)


def version() -> None:
    """The version of quintet."""
    print_line(quintet.__version__)
