"""Owns the verbs that train: `train`, `resume` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet import config as configs
from quintet import registry
from quintet.cli.shared import Overrides, RunFolder, print_line, print_next
from quintet.errors import UsageError


def train(
    context: typer.Context,
    recipe: Annotated[str | None, typer.Argument(help="What to train; `quintet recipes` lists them.")] = None,
    data: Annotated[
        str | None, typer.Argument(help="Folder of media and captions, or of shards; or an address of shards.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<recipe>-<n>.")] = None,
    preset: Annotated[str | None, typer.Option(help="debug, small or base: sets many keys at once.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of keys.")] = None,
    init: Annotated[str | None, typer.Option(help="Fine-tune: start from the weights of this run or export.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="The trained tokenizer that a generator stands on.")] = None,
    base: Annotated[
        str | None, typer.Option(help="The trained model whose results a super-resolution model enlarges.")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(help="The trained mulan whose vectors tell a generator of sound what to make.")
    ] = None,
    help: Annotated[bool, typer.Option("--help", help="Show this message; with a RECIPE also all its keys.")] = False,
) -> None:
    """Train a recipe on a folder of files, in a new run folder."""
    if help or recipe is None:
        print_line(context.get_help())
        if recipe is not None:
            print_line("\nKeys, with their meaning and default:\n")
            print_line(configs.describe(configs.build(registry.find(recipe).config_class(), preset=preset)))
        raise typer.Exit(0 if help else 2)
    words = [word for word in (data, *(overrides or [])) if word is not None]
    folder, changes = _data_and_overrides(words)
    schema = registry.find(recipe).config_class()
    named = {"init": init, "tokenizer": tokenizer, "base": base, "condition": condition}
    links = {name: reference for name, reference in named.items() if reference is not None}
    for name in links:
        if name not in ("init", *schema.FROZEN_KEYS):
            raise UsageError(f"recipe {recipe} stands on no {name}: leave --{name} out")
    where = {} if folder is None else {"data.path": configs.data_path(folder)}
    settings = configs.build(schema, preset=preset, file=config, overrides={**changes, **links, **where})
    if settings.recipe != recipe:
        raise UsageError(f"{config} is for recipe '{settings.recipe}', not '{recipe}'")
    if settings.data.path is None:
        raise UsageError(f"say which folder to train on: `quintet train {recipe} DATA`")
    from quintet import runs

    _train(runs.new_trainer(settings, out))


def resume(
    run: RunFolder,
    overrides: Overrides = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also under other keys, on changed data, or by another version.")
    ] = False,
) -> None:
    """Continue a run from its newest sound checkpoint; train.steps=N for longer."""
    from quintet import runs

    _train(runs.resumed_trainer(run, configs.parse_overrides(overrides or []), force))


def _train(trainer: Any) -> None:
    begun = trainer.step
    try:
        trainer.train()
    except SystemExit:  # a signal: everything is saved, and the other processes are told
        _leave(trainer)
        raise
    except BaseException:
        trainer.close()
        raise
    if trainer.is_main:
        folder = trainer.run.folder
        from quintet.media.chart import write_curves

        rows = trainer.run.read_metrics()
        trainer.run.best_effort_write("curves.png", lambda: write_curves(rows, folder / "curves.png"))
        made = [name for name in ("samples", "curves.png", "metrics.jsonl") if (folder / name).exists()]
        with suppress(OSError):  # what was trained stands, whether or not it can be said
            if trainer.step == begun:
                print_line(f"{folder} is at step {begun} already; train.steps=N for longer")
            else:
                print_line(f"trained to step {trainer.step}: {folder} (to look at: {', '.join(made)})")
            print_next(("eval", folder), ("view", folder))
    _leave(trainer)


def _leave(trainer: Any) -> None:
    trainer.close()
    trainer.engine.close()


def _data_and_overrides(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The folder may be left out where a configuration file names it; then the first word is a key=value."""
    named = bool(words) and (
        "=" not in words[0]
        or Path(words[0]).exists()
        or "://" in words[0].partition("=")[0]  # an address may have parts like `date=2024`
    )
    folder = words[0] if named else None
    return folder, configs.parse_overrides(words[1:] if folder is not None else words)


def verify(
    run: RunFolder,
    start: Annotated[
        int | None, typer.Option("--from", min=0, help="Checkpoint to start from; 0: the beginning.")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=1, help="Checkpoint to compare with; default the newest.")
    ] = None,
) -> None:
    """Check all checkpoints of a run, and take the steps between the last two again: the bytes must be the same."""
    from quintet.verify import check_run

    verdict = check_run(run, start, end)
    for note in verdict.notes:
        print_line(f"note: {note}")
    print_line(f"reproduced: steps {verdict.start} to {verdict.end} again, {verdict.files} files, the same bytes")
    print_next(("eval", run))
