"""The commands `recipes`, `config`, `models`, `doctor`, `demo` and `version`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import quintet
from quintet import config as configs
from quintet import registry
from quintet.cli.shared import Overrides, print_line, print_next, print_result
from quintet.common.logging import say
from quintet.errors import UsageError


def list_recipes() -> None:
    """List the recipes and what each of them needs."""
    for name, entry in registry.entries():
        python = f"; in Python {entry.trainer}" if entry.trainer else ""
        print_result(f"{name:<18} {entry.summary} (needs {entry.needs}{python})")
        for builtin in entry.builtin:
            print_result(f"{'':<18} `{builtin}` needs no training and can be used wherever a trained {name} can")
    for problem in registry.problems():
        say(f"warning: {problem}")
    print_next(("config", "RECIPE"), ("demo", "image"))


def list_models() -> None:
    """List the starter models, which are part of quintet: what they are for, size, licences of their data, metrics."""
    from quintet.common.weights import starters
    from quintet.config.text import STARTER

    for name in starters.names():
        starters.fetch(f"{STARTER}{name}")  # with all hashes checked
        model = starters.read(name)
        figures = ", ".join(f"{metric} {value:.4g}" for metric, value in model.figures.items())
        print_result(f"{STARTER}{name}")
        print_result(f"  {model.summary} ({model.recipe}, {model.size / 1e6:.1f} MB)")
        print_result(f"  data: {', '.join(model.licenses)}")
        print_result(f"  held-out data: {figures}")
        print_result(f"  card: {starters.root() / name / 'README.md'}")
    if not starters.names():
        print_result("this installation has no starter models")


def show_config(
    recipe: Annotated[str, typer.Argument(help="Recipe; `quintet recipes` lists them.")],
    overrides: Overrides = None,
    preset: Annotated[str | None, typer.Option(help="Preset of many keys: debug, small or base.")] = None,
) -> None:
    """Print all configuration keys of a recipe as commented YAML, ready for --config."""
    schema = registry.find(recipe).config_class()
    built = configs.build(schema, preset=preset, overrides=configs.parse_overrides(overrides or []))
    print_result(configs.describe(built).rstrip())


def doctor() -> None:
    """Show versions, devices and optional dependencies of this installation."""
    from quintet.doctor import lines

    for line in lines():
        print_result(line)


def demo(
    medium: Annotated[
        Literal["image", "video", "audio", "mesh", "all"],
        typer.Argument(help="Medium of the demo; all: one after another."),
    ] = "image",
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Total minutes of training; data, samples and evaluation take additional time. Targets are not "
            "printed for less than the duration of --full.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Train as long as for the metrics in docs/results.md.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="train.seed of all runs; default: 0. The data is always the same."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for data and runs; default: runs/demo-MEDIUM.")] = None,
) -> None:
    """Run a complete workflow on synthetic data: make, train, resume, sample, eval, view. Prints each command."""
    from quintet import cli, demos
    from quintet.demos.demo import DemoMode
    from quintet.demos.script import Script

    if full and minutes is not None:
        raise UsageError("--full and --minutes cannot be combined: choose one")
    mode, script = DemoMode(full, minutes, seed), Script(cli.call, print_line)
    folder = out or Path(f"runs/demo-{medium}")
    if medium == "all":
        demos.run_all(folder, mode, script)
    else:
        demos.run_demo(medium, folder, mode, script)


def version() -> None:
    """Print the version of quintet."""
    print_result(quintet.__version__)
