"""The commands `train`, `resume` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet import config as configs
from quintet import registry
from quintet.cli import launch
from quintet.cli.shared import Overrides, RunFolder, print_line, print_next, print_result
from quintet.common.logging import say
from quintet.config.text import NAMED
from quintet.errors import UsageError

FEW = "few"
"""The preset that needs trained weights."""


def train(
    context: typer.Context,
    recipe: Annotated[str | None, typer.Argument(help="Recipe to train; `quintet recipes` lists them.")] = None,
    data: Annotated[
        str | None, typer.Argument(help="Folder of media files and captions, folder of shards, or URL of shards.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="New run folder; default: runs/<recipe>-<n>.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Preset of many keys: debug, small, base, or few (to fine-tune on a few hundred files)."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with configuration keys.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time to train, such as 90s, 10m or 1.5h: trains preset small, or the one that you name, for as many "
            "steps as fit, with warm-up and intervals to match, and ends the learning rate schedule there. A batch "
            "that is larger than the data is reduced. Keys that you set are kept. Reading the data and the last "
            "validation take additional time."
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            help="Fine-tune: start from the weights of this run, exported folder, starter:NAME or hub:USER/NAME."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Trained tokenizer that a generator uses: run, exported folder, starter:NAME or hub:USER/NAME."
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Trained base model of a super-resolution model (muse): run or exported folder.")
    ] = None,
    condition: Annotated[
        str | None,
        typer.Option(
            help="Conditioning: for a soundstorm a trained mulan (run, exported folder or starter:NAME); for a "
            "mesh-transformer the word `points`, for point clouds of the meshes."
        ),
    ] = None,
    help: Annotated[
        bool, typer.Option("--help", help="Show this message and exit; with a RECIPE, also list its keys.")
    ] = False,
) -> int:
    """Train a recipe on your data and write a new run folder."""
    if help or recipe is None:
        print_result(context.get_help())
        if recipe is not None:
            print_result("\nConfiguration keys with descriptions and default values:\n")
            print_result(configs.describe(configs.build(registry.find(recipe).config_class(), preset=preset)))
        raise typer.Exit(0 if help else 2)
    words = [word for word in (data, *(overrides or [])) if word is not None]
    folder, changes = _data_and_overrides(words)
    schema = registry.find(recipe).config_class()
    references = {"init": init, "tokenizer": tokenizer, "base": base, "condition": condition}
    frozen = {name: reference for name, reference in references.items() if reference is not None}
    condition_keys = _condition_keys(schema, frozen.pop("condition")) if condition and schema.CONDITIONS else {}
    for name in frozen:
        if name not in ("init", *schema.FROZEN_KEYS):
            keys = [*schema.FROZEN_KEYS, *(["condition"] if schema.CONDITIONS else [])]
            allowed = " and ".join(f"--{key}" for key in keys)
            taken = f" (it takes {allowed})" if allowed else ""
            raise UsageError(f"'{recipe}' does not take --{name}{taken}")
    if any(reference.startswith(NAMED) for reference in frozen.values()):
        from quintet.common.weights.named import pinned

        frozen = {name: pinned(reference) for name, reference in frozen.items()}
    path = {} if folder is None else {"data.path": configs.data_path(folder)}
    changes = {**condition_keys, **changes, **frozen, **path}
    time = None if budget is None else configs.Budget.of(budget, schema, config, changes)
    if time is not None and preset is None and configs.BUDGET_PRESET in schema.PRESETS:
        preset = configs.BUDGET_PRESET
    if preset == FEW and not changes.get("init"):
        say(f"preset {FEW} is for fine-tuning: name trained weights with --init RUN")
    sizes = None
    if changes.get("init"):
        from quintet.common.weights.run_reader import model_keys

        sizes = model_keys(str(changes["init"]), recipe, schema)
    settings = configs.build(schema, base=sizes, preset=preset, file=config, overrides=changes)
    if settings.recipe != recipe:
        raise UsageError(f"{config} is for recipe '{settings.recipe}', not '{recipe}'")
    if settings.data.path is None:
        raise UsageError(f"name the data folder: `quintet train {recipe} DATA`")
    settings = launch.resolve(settings)
    if number := launch.processes_to_start(settings):
        return launch.run_processes(context.obj, number)
    from quintet import runs

    _train(runs.new_trainer(settings, out, budget=time))
    return 0


def _condition_keys(schema: type[configs.RunConfig], condition: str) -> Mapping[str, Any]:
    """The keys that a value of `--condition` stands for, of a recipe whose values are words."""
    if condition not in schema.CONDITIONS:
        recipe = schema.model_fields["recipe"].default
        words = " or ".join(f"--condition {word}" for word in schema.CONDITIONS)
        raise UsageError(f"'{recipe}' takes {words}, not --condition {condition[:80]}")
    return schema.CONDITIONS[condition]


def resume(
    context: typer.Context,
    run: RunFolder,
    overrides: Overrides = None,
    force: Annotated[
        bool, typer.Option("--force", help="Resume even if keys, data or the version of quintet have changed.")
    ] = False,
) -> int:
    """Resume a run from its newest valid checkpoint; set train.steps=N to train longer."""
    changes = configs.parse_overrides(overrides or [])
    settings = _resumed_settings(run, changes)
    if settings is not None:
        settings = launch.resolve(settings)
        if number := launch.processes_to_start(settings):
            return launch.run_processes(context.obj, number)
        changes = {**changes, "engine.launch": settings.engine.launch}
    from quintet import runs

    _train(runs.resumed_trainer(run, changes, force))
    return 0


def _resumed_settings(run: Path, changes: Mapping[str, Any]) -> configs.RunConfig | None:
    """The configuration of a run, for `engine.launch`; None if it cannot be read, which resuming explains."""
    try:
        return registry.read_config(run / "config.yaml").changed(changes)
    except UsageError:
        return None


def _train(trainer: Any) -> None:
    first_step = trainer.step
    try:
        trainer.train()
    except SystemExit:  # a signal: the state is saved and the other processes are notified
        _close(trainer)
        raise
    except BaseException:
        trainer.close()
        raise
    if trainer.is_main:
        folder = trainer.run.folder
        from quintet.media.chart import write_curves

        rows = trainer.run.read_metrics()
        trainer.run.best_effort_write("curves.png", lambda: write_curves(rows, folder / "curves.png"))
        outputs = [name for name in ("samples", "curves.png", "metrics.jsonl") if (folder / name).exists()]
        if trainer.step == first_step and not trainer.is_out_of_patience:
            print_line(f"{folder} is already at step {first_step}; set train.steps=N to train longer")
        else:
            print_line(f"trained to step {trainer.step}: {folder} (see {', '.join(outputs)})")
        print_next(("eval", folder), ("view", folder))
    _close(trainer)


def _close(trainer: Any) -> None:
    trainer.close()
    trainer.engine.close()


def _data_and_overrides(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The data folder, which is optional if a configuration file names it, and the key=value arguments."""
    is_folder = bool(words) and (
        "=" not in words[0]
        or Path(words[0]).exists()
        or "://" in words[0].partition("=")[0]  # a URL may have parts like `date=2024`
    )
    folder = words[0] if is_folder else None
    return folder, configs.parse_overrides(words[1:] if folder is not None else words)


def verify(
    run: RunFolder,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            help="Step of the checkpoint to start from; 0: the start of the run; default: the one before --to.",
        ),
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=1, help="Step of the checkpoint to compare with; default: the newest.")
    ] = None,
) -> None:
    """Check all checkpoints of a run, and repeat the steps between the last two: the result must be identical."""
    from quintet.verify import check_run

    verdict = check_run(run, start, end)
    for note in verdict.notes:
        print_line(f"note: {note}")
    print_line(f"reproduced: steps {verdict.start} to {verdict.end}, {verdict.files} files identical")
    print_next(("eval", run))
