"""Owns the way from a request to a running trainer, and from a run or an exported folder back to a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quintet import config as configs
from quintet import registry
from quintet.common import files
from quintet.common.batch import Dataset
from quintet.common.inference import inference_mode
from quintet.common.rank import RankInfo
from quintet.common.weights import checkpoint, pretrained
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.loading import load_module, read_meta
from quintet.config import RunConfig
from quintet.config.text import PRETRAINED
from quintet.errors import UsageError
from quintet.nn import transformers_folder
from quintet.nn.pretrained_hearing import is_hearing
from quintet.pipelines.frozen import FrozenModel
from quintet.training.engine import Engine, may_be_restarted
from quintet.training.evaluate import evaluate, make_artifacts
from quintet.training.loader import Loader
from quintet.training.prepare import open_splits, place_links
from quintet.training.run_folder import Run, next_folder
from quintet.training.task import Artifact, Request, Task
from quintet.training.trainer import Trainer


def new_trainer(config: RunConfig, out: Path | None = None, silent: bool = False) -> Trainer:
    """A trainer for a new run. Nothing is written before data and configuration have been found to fit."""
    folder = out or next_folder(config.recipe)
    if may_be_restarted() and Run(folder).config_file.is_file():
        return _started_again(config, folder, silent)
    # Only the process that will write looks: it may make the folder before the others get here.
    run = Run.new(folder, config.LINKS) if RankInfo.from_environment().rank == 0 else Run(folder)
    init = None
    if config.init:
        trained = open_trained(config.init)
        if trained.ready:
            raise UsageError(f"--init {config.init}: there is nothing learned in it to start from")
        # The very checkpoint, so that a run that begins again begins from the same weights.
        config = config.changed({"init": trained.reference})
        init = initial_weights(config)
    for name in config.LINKS:
        if getattr(config, name):
            config = config.changed({name: open_trained(getattr(config, name)).reference})
    recipe = make_recipe(config)
    if config.init:
        _refuse_other_links(recipe, trained)
    return Trainer(recipe, run, init=init, silent=silent)


def _started_again(config: RunConfig, folder: Path, silent: bool) -> Trainer:
    """The same command again, by a launcher that was told to do so after a failure: the run goes on."""
    old = read_config(folder / "config.yaml")
    if old.recipe != config.recipe:
        raise UsageError(f"{folder} is a run of recipe '{old.recipe}', not of '{config.recipe}'; choose another --out")
    named = {name: (getattr(config, name), getattr(old, name)) for name in ("init", *old.LINKS)}
    overrides = {name: asked for name, (asked, known) in named.items() if _folder_named(asked) != _folder_named(known)}
    if not overrides:
        # As a new start would have it: with what follows from the data and from what it stands on, whose copy lies in
        # the run's folder.
        config = make_recipe(config.changed({name: known for name, (_, known) in named.items()}), folder).config
        found = {"train.steps"} if config.train.epochs is not None else set()
        found |= {"optim.horizon"} if config.optim.horizon is None else set()
        changes = configs.differences(old, config).items()
        overrides = {key: asked for key, (_, asked) in changes if key not in found}
    return resumed_trainer(folder, overrides, silent=silent)


def _folder_named(reference: str | None) -> str | None:
    """Of a reference, without the step, which the start of a run adds to it."""
    if reference is None:
        return None
    path = reference if os.path.exists(reference) else reference.rpartition("@")[0] or reference
    return str(Path(path).resolve()) if os.path.exists(path) else path


def _refuse_other_links(recipe: Task[Any], trained: Trained) -> None:
    """Weights that stand on one tokenizer mean nothing on another."""
    for name, link in recipe.links.items():
        other = trained.recipe.links.get(name)
        if other is not None and other.digest != link.digest:
            raise UsageError(
                f"--init {trained.reference} stands on another {name} ({other.reference}) than {link.reference}"
            )


def resumed_trainer(folder: Path, overrides: Mapping[str, Any], force: bool = False, silent: bool = False) -> Trainer:
    """A trainer that continues a run from its newest sound checkpoint, or from its start where there is none yet.

    With `force` also under other keys, on other data, or by another version.
    """
    run = Run.open(folder)
    old = read_config(run.config_file)
    new = old.changed(overrides)
    if not force:
        configs.refuse_changes(old, new)
    saved = checkpoint.steps(run.checkpoints)
    begun = bool(saved)
    if begun and "train.steps" in overrides and new.train.steps < checkpoint.step_of(saved[-1]):
        raise UsageError(f"train.steps={new.train.steps}, but {folder} is at step {checkpoint.step_of(saved[-1])}")
    latest = run.checkpoints / "latest"
    if not begun and latest.exists():
        raise UsageError(
            f"the checkpoints of {folder} are gone ({latest} names {latest.read_text(errors='replace').strip()[:20]}); "
            "put them back, or start anew with `quintet train` and another --out"
        )
    init = initial_weights(new) if new.init and not begun else None
    trainer = Trainer(make_recipe(new, folder), run, resume=True, force=force, init=init, silent=silent)
    for key, (before, after) in configs.differences(old, new).items():
        trainer.print(f"changed: {key}: {before!r} -> {after!r}")
    return trainer


def make_recipe(config: RunConfig, home: Path | None = None) -> Task[Any]:
    """The recipe with fresh weights, the same for the same seed.

    What it stands on is taken from the copy in `home`, the folder of its run or export, where there is one.
    """
    links = {name: open_link(_place(config, name, home)) for name in config.LINKS if getattr(config, name)}
    torch.manual_seed(config.train.seed)
    return registry.find(config.recipe).task_class()(config, **links)


def open_link(reference: str) -> FrozenModel:
    """A trained model for another one to stand on: a run, RUN@step, an exported folder, or a ready model."""
    trained = open_trained(reference)
    modules = {name: trained.modules[name] for name in trained.recipe.in_use if name in trained.modules}
    return FrozenModel(trained.recipe, modules, reference, export_contents(trained, {}))


def link_to(model: Any) -> FrozenModel:
    """The same for a model in memory, of one of the public classes of tokenizers."""
    kind = type(model).__name__
    for entry in registry.RECIPES.values():
        schema, task_class = entry.config_class(), entry.task_class()
        if kind in entry.models and not schema.LINKS:
            config = configs.build(schema, overrides={"model": model.config.model_dump(mode="json")})
            recipe = task_class(config, **{task_class.exported: model})
            trained = Trained(recipe, {recipe.exported: model}, None, Path(kind), None, [])
            return FrozenModel(recipe, dict(trained.modules), f"a {kind} in Python", export_contents(trained, {}))
    raise UsageError(f"a {kind} is no model of quintet that others stand on")


def _place(config: RunConfig, name: str, home: Path | None) -> str:
    """The copy in a run's own folder; where there is none, what the key says."""
    own = home / name if home is not None else None
    return str(own) if own is not None and own.is_dir() else str(getattr(config, name))


def read_config(path: Path) -> RunConfig:
    tree = configs.read_yaml(path)
    recipe = tree.get("recipe")
    if not isinstance(recipe, str):
        raise UsageError(f"{path} does not say which recipe it is for")
    return configs.validate(registry.find(recipe).config_class(), tree)


def initial_weights(config: RunConfig) -> dict[str, dict[str, Tensor]]:
    """The weights a fine-tuning starts from: every module of a run, or the one of an exported folder."""
    assert config.init is not None
    trained = open_trained(config.init)
    if trained.recipe.name != config.recipe:
        raise UsageError(f"--init {config.init} is of recipe '{trained.recipe.name}', this run is of '{config.recipe}'")
    return {name: module.state_dict() for name, module in trained.modules.items()}


@dataclass
class Trained:
    """A model to look at and use: averaged weights where there are any, and the live ones beside them."""

    recipe: Task[Any]
    modules: dict[str, nn.Module]
    live: dict[str, nn.Module] | None
    folder: Path
    step: int | None
    problems: list[str]
    """What was wrong with newer checkpoints."""
    ready: bool = False
    """Whether it is a model without learning: then `folder` is its name, and there is no such folder."""

    @property
    def reference(self) -> str:
        """What to call it so that the same weights are found again."""
        if self.ready:
            return str(self.folder)
        exported = (self.folder / pretrained.CONFIG).is_file()
        return str(self.folder.resolve()) + ("" if exported else f"@{self.step}")

    @property
    def model(self) -> nn.Module:
        return self.modules[self.recipe.exported]


def open_trained(reference: str | Path) -> Trained:
    """`RUN`, `RUN@step`, `RUN@best`, an exported folder, one that `transformers` wrote, or the name of a ready model.

    `hf:NAME` is the folder that the hub's cache holds under that name. A folder that is called like a ready model is
    `./NAME`.
    """
    config = registry.find_ready(reference) if isinstance(reference, str) else None
    if config is not None:
        recipe = make_recipe(config)
        return Trained(recipe, dict(recipe.modules), None, Path(reference), None, [], ready=True)
    text, which = str(reference), ""
    if "@" in text and not os.path.exists(text):  # the name of a folder may hold an @ of its own
        text, _, which = text.rpartition("@")
    folder = Path(text)
    if text.startswith(PRETRAINED):
        folder = transformers_folder.find_folder(text.removeprefix(PRETRAINED), "model")
    if (model_type := transformers_folder.kind_of(folder)) is not None:
        return _open_foreign(folder, model_type)
    if (folder / pretrained.CONFIG).is_file():
        return _open_exported(folder)
    run = Run.open(folder)
    chosen, problems = _choose_checkpoint(run, which)
    recipe = make_recipe(read_config(chosen / "config.yaml"), folder)
    step = read_meta(chosen, recipe.name)["step"]
    for name, module in recipe.modules.items():
        load_module(module, chosen, name)
    live = None
    modules = dict(recipe.modules)
    if recipe.config.ema.enabled:
        averaged = make_recipe(recipe.config, folder)
        for name in averaged.averaged:
            load_module(averaged.modules[name], chosen, f"ema/{name}")
            modules[name] = averaged.modules[name]
        live = dict(recipe.modules)
    return Trained(recipe, modules, live, folder, step, problems)


def _open_exported(folder: Path) -> Trained:
    settings = pretrained.read_settings(folder)
    if not isinstance(settings.get("run"), dict):
        raise UsageError(f"{folder} holds a model without its run; load it with `from_pretrained`, or export a run")
    schema = registry.find(str(settings.get("recipe"))).config_class()
    recipe = make_recipe(configs.validate(schema, settings["run"]), folder)
    modules = {recipe.exported: recipe.modules[recipe.exported]}
    load_module(modules[recipe.exported], folder, pretrained.WEIGHTS)
    for name in recipe.in_use[1:]:
        if (folder / f"{name}.safetensors").exists():  # older exports hold nothing beside
            modules[name] = recipe.modules[name]
            load_module(modules[name], folder, name)
    return Trained(recipe, modules, None, folder, settings.get("step"), [])


def _open_foreign(folder: Path, model_type: str) -> Trained:
    """What `transformers` wrote."""
    entry = registry.find_by_type(model_type)
    if entry is None:
        known = ", ".join(kind for each in registry.RECIPES.values() for kind in each.config_class().TRANSFORMERS)
        hint = "; semantic tokens are made with it by `quintet encode … --layer N`" if is_hearing(model_type) else ""
        raise UsageError(f"{folder} holds a model of transformers of type {model_type[:40]}, not of {known}{hint}")
    recipe = entry.task_class().from_transformers(folder)
    return Trained(recipe, dict(recipe.modules), None, folder, None, [])


def _choose_checkpoint(run: Run, which: str) -> tuple[Path, list[str]]:
    root = run.checkpoints
    if not checkpoint.steps(root):
        raise UsageError(f"{run.folder} has no checkpoint yet; train it first")
    if which in ("", "latest"):
        return checkpoint.newest_sound(root)
    chosen = checkpoint.pointed(root, "best") if which == "best" else None
    if which.isascii() and which.isdecimal() and len(which) < 16:
        chosen = checkpoint.folder_of(root, int(which))
    if chosen is None or not chosen.is_dir():
        known = ", ".join(str(checkpoint.step_of(path)) for path in checkpoint.steps(root))
        raise UsageError(f"{run.folder} has no checkpoint '{which[:20]}'; it has best, latest and the steps {known}")
    checkpoint.verify(chosen)
    return chosen, []


@dataclass
class EvalSession:
    """A trained model with its validation data, in this process."""

    trained: Trained
    engine: Engine
    loader: Loader
    extra_splits: dict[str, Loader]
    """Items that were neither trained on nor validated with, by split."""
    skipped: dict[str, str]
    """Files that were passed over when the folder was listed, each with the reason."""

    @classmethod
    def open(cls, trained: Trained, data: str | None = None) -> EvalSession:
        """`data` replaces the folder of the run; all of it is then looked at."""
        recipe = trained.recipe
        if data is not None:
            recipe.config = recipe.config.changed({"data.path": data, "data.validation_path": data})
        elif recipe.config.data.path is None:
            why = "is not trained on anything" if trained.ready else "was trained on a data set in Python"
            raise UsageError(f"{trained.folder} {why}; name a folder with --data")
        engine = Engine(recipe.config.engine, recipe.config.train.seed)
        for modules in (trained.modules, trained.live or {}):
            engine.place(modules)
        splits = open_splits(recipe)

        def loader(source: Dataset) -> Loader:
            return Loader(source, recipe.config.train.seed, recipe.collate, engine, workers=0)

        extra_splits = {split: loader(source) for split, source in splits.extra_splits.items()}
        return cls(trained, engine, loader(splits.validation), extra_splits, splits.skipped)

    def figures(self) -> dict[str, float]:
        """The figures of `eval.json`, over the whole validation set; those of the live weights under `live/`."""
        config = self.trained.recipe.config
        size = config.eval.batch_size or config.train.batch_size // config.train.accumulate
        figures = evaluate(
            self.trained.recipe,
            self.trained.modules,
            self.loader,
            self.engine,
            size,
            generated=config.eval.generated,
            extra_splits=self.extra_splits,
        )
        if self.trained.live is not None:
            live = evaluate(self.trained.recipe, self.trained.live, self.loader, self.engine, size)
            figures.update({f"live/{name}": value for name, value in live.items()})
        return figures

    def artifacts(self, num: int) -> list[Artifact]:
        batch = self.loader.first(num).batch.to(self.engine.device, self.engine.dtype)
        return make_artifacts(self.trained.recipe, self.trained.modules, batch, self.engine)


def generate(trained: Trained, request: Request) -> list[Artifact]:
    """What a person asked a generator for."""
    recipe = trained.recipe
    engine = Engine(recipe.config.engine, recipe.config.train.seed)
    engine.place(trained.modules)
    place_links(recipe)
    with inference_mode(trained.modules), engine.autocast():
        return recipe.generate(trained.modules, request)


def export(trained: Trained, target: Path, figures: Mapping[str, float]) -> None:
    """The averaged weights of the exported module, with all that is needed to use them again."""
    files.refuse_existing(target, "choose another folder")
    checkpoint.write_folder(target, export_contents(trained, figures))


def export_contents(trained: Trained, figures: Mapping[str, float]) -> Contents:
    """The files of an export; what the model stands on lies in folders of their own inside."""
    about = {
        "recipe": trained.recipe.name,
        "step": trained.step,
        "figures": dict(figures),
        "run": trained.recipe.config.model_dump(mode="json"),
    }
    contents = pretrained.export_contents(trained.model, about)
    for name in trained.modules.keys() & set(trained.recipe.in_use[1:]):
        contents.tensors[name] = trained.modules[name].state_dict()
    for name, link in trained.recipe.links.items():
        for kind in ("tensors", "json", "text"):
            inside = getattr(link.contents, kind)
            getattr(contents, kind).update({f"{name}/{file}": value for file, value in inside.items()})
    return contents
