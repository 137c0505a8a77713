"""Load pipelines from a run, an exported folder, a model of `transformers`, or the name of a built-in model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quintet import config as configs
from quintet import registry
from quintet.common.logging import say
from quintet.common.memory import building
from quintet.common.weights import checkpoint, lora, named, pretrained, tensor_groups
from quintet.common.weights.loading import load_module, read_meta
from quintet.common.weights.pruning import again_if_pruned, reading
from quintet.common.weights.run_reader import CONFIG_FILE, check_run, was_edited
from quintet.config import RunConfig
from quintet.config.text import PRETRAINED
from quintet.errors import UsageError
from quintet.nn import transformers_folder
from quintet.nn.pretrained_audio import is_audio_encoder
from quintet.pipelines.base import Frozen, Origin, Pipeline

AVERAGED = "ema/"
"""Folder of the EMA weights in a checkpoint."""
_MOVING = ("", "latest", "best")
"""Names of checkpoints that change during a training."""


def open_pipeline(reference: str | Path) -> Pipeline[Any]:
    """Load `RUN`, `RUN@step`, `RUN@best`, an exported folder, one of `transformers`, or a built-in model by its name.

    The pipeline is on the CPU, in float32 and in eval mode. `hf:NAME` is a model in the local Hugging Face cache,
    `hub:USER/NAME` is downloaded, and `starter:NAME` is part of quintet. A folder with the name of a built-in model is
    `./NAME`.
    """
    if named.is_named(reference):
        snapshot = named.fetch(str(reference))
        pipeline = open_pipeline(snapshot.folder)
        assert pipeline.origin is not None
        pipeline.origin, pipeline.reference = replace(pipeline.origin, pinned=snapshot.reference), str(reference)
        return pipeline
    config = registry.find_builtin(reference) if isinstance(reference, str) else None
    text, which = _split(str(reference))
    folder = Path(text)
    if text.startswith(PRETRAINED):
        folder = transformers_folder.find_folder(text.removeprefix(PRETRAINED), "model")
    if config is not None:
        pipeline = _build(config, {}, Origin(Path(reference), builtin=True))
    elif (model_type := transformers_folder.kind_of(folder)) is not None:
        pipeline = _open_transformers(folder, model_type)
    elif (folder / pretrained.CONFIG).is_file():
        pipeline = _open_export(folder)
    else:
        pipeline = _open_run(folder, which)
    pipeline.reference = str(reference)
    for module in pipeline.modules.values():
        module.eval()
    return pipeline


def _split(reference: str) -> tuple[str, str]:
    """The folder of a reference, and what follows the @; a folder name may contain one itself."""
    if "@" not in reference or os.path.exists(reference):
        return reference, ""
    folder, _, which = reference.rpartition("@")
    return folder, which


def is_fixed(reference: str) -> bool:
    """Whether a reference names a step, so that no other checkpoint can replace it."""
    return _split(reference)[1] not in _MOVING


def _build(config: RunConfig, frozen: Frozen, origin: Origin) -> Pipeline[Any]:
    pipeline_class = registry.find(config.recipe).pipeline_class()
    config = pipeline_class.fit(config, frozen)
    with building(config):
        return pipeline_class(config, pipeline_class.build_modules(config, frozen), frozen, origin)


def _open_run(folder: Path, which: str) -> Pipeline[Any]:
    check_run(folder)
    return again_if_pruned(lambda: _open_checkpoint(folder, *choose_checkpoint(folder, which)), which not in _MOVING)


def _open_checkpoint(folder: Path, chosen: Path, problems: Sequence[str]) -> Pipeline[Any]:
    with reading(chosen):
        config = registry.read_config(chosen / CONFIG_FILE)
        step = read_meta(chosen, config.recipe)["step"]
        for problem in problems:
            say(f"skipped a damaged checkpoint: {problem}")
        if was_edited(folder):
            used = chosen / CONFIG_FILE
            say(f"{folder / CONFIG_FILE} was edited; the configuration of the checkpoint is used ({used})")
        pipeline = _build(config, open_frozen(config, folder), Origin(folder, step))
        for name, module in pipeline.modules.items():
            load_module(module, chosen, AVERAGED + name if _is_averaged(chosen, name) else name)
        return pipeline


def _is_averaged(folder: Path, name: str) -> bool:
    return (folder / f"{AVERAGED}{name}.safetensors").exists() or (folder / AVERAGED / name).is_dir()


def _open_export(folder: Path) -> Pipeline[Any]:
    checkpoint.verify_used(folder)
    settings = pretrained.read_settings(folder)
    if not isinstance(settings.get("run"), dict):
        raise UsageError(
            f"{folder} is a model without a run configuration; load it with `from_pretrained`, or export a run"
        )
    schema = registry.find(str(settings.get("recipe"))).config_class()
    config = configs.validate(schema, configs.migrated(schema, settings["run"]))
    pipeline = _build(config, open_frozen(config, folder), Origin(folder, settings.get("step")))
    for name in [*pipeline.modules]:
        if name == pipeline.exported:
            load_module(pipeline.modules[name], folder, pretrained.WEIGHTS)
        elif (folder / f"{name}.safetensors").exists():
            load_module(pipeline.modules[name], folder, name)
        else:  # older exports contain only the model
            del pipeline.modules[name]
    return pipeline


def _open_transformers(folder: Path, model_type: str) -> Pipeline[Any]:
    entry = registry.find_by_type(model_type)
    if entry is None:
        known = ", ".join(registry.transformers_types())
        hint = (
            "; use `quintet encode … --layer N` to encode semantic tokens with it"
            if is_audio_encoder(model_type)
            else ""
        )
        library = "diffusers" if model_type.startswith(transformers_folder.DIFFUSERS) else "transformers"
        kind = model_type.removeprefix(transformers_folder.DIFFUSERS)[:40]
        raise UsageError(f"{folder} is a {library} model of type {kind}; supported types: {known}{hint}")
    return entry.pipeline_class().from_transformers(folder)


def open_frozen(config: RunConfig, home: Path | None = None) -> dict[str, Pipeline[Any]]:
    """The frozen pipelines of a configuration, such as its tokenizer, by key.

    The copy in `home`, the folder of a run or export, is preferred if there is one.
    """
    named = [name for name in config.FROZEN_KEYS if getattr(config, name)]
    return {name: open_pipeline(_location(config, name, home)).freeze() for name in named}


def _location(config: RunConfig, name: str, home: Path | None) -> str:
    """The copy in the folder of the run, or else the value of the key."""
    own = home / name if home is not None else None
    return str(own) if own is not None and own.is_dir() else str(getattr(config, name))


def load_live(pipeline: Pipeline[Any]) -> dict[str, nn.Module] | None:
    """Modules with the live weights (not EMA) of the checkpoint; None if there are no others than those loaded."""
    origin = pipeline.origin
    if origin is None or origin.builtin or origin.is_export or not pipeline.config.ema.enabled:
        return None
    folder = checkpoint.folder_of(origin.folder / checkpoint.ROOT, origin.step or 0)
    with building(pipeline.config):
        modules = pipeline.build_modules(pipeline.config, pipeline.frozen)
    with reading(folder):
        for name, module in modules.items():
            load_module(module, folder, name)
    return modules


def read_weights(pipeline: Pipeline[Any]) -> dict[str, dict[str, Tensor]]:
    """State dicts to start fine-tuning from, by module: all modules of the run (EMA weights if there are any), or those
    of the export."""
    origin = pipeline.origin
    if origin is None or origin.is_export or origin.builtin:
        return {name: dict(module.state_dict()) for name, module in pipeline.modules.items()}
    folder = checkpoint.folder_of(origin.folder / checkpoint.ROOT, origin.step or 0)
    with reading(folder):
        names = {path.stem for path in folder.glob("*.safetensors")}
        names |= {path.name for path in folder.iterdir() if path.is_dir()} - {"ema", "optim"}
        return {
            name: lora.merged(
                tensor_groups.read_tensors(folder, AVERAGED + name if _is_averaged(folder, name) else name)
            )
            for name in sorted(names)
        }


def choose_checkpoint(folder: Path, which: str) -> tuple[Path, list[str]]:
    """The checkpoint that `latest`, `best` or a step refers to, and the problems of newer, damaged ones."""
    root = folder / checkpoint.ROOT
    if not checkpoint.steps(root):
        raise UsageError(f"{folder} has no checkpoint yet; train it first")
    if which in ("", "latest"):
        return checkpoint.newest_sound(root)
    chosen = checkpoint.read_pointer(root, "best") if which == "best" else None
    if which.isascii() and which.isdecimal() and len(which) < 16:
        chosen = checkpoint.folder_of(root, int(which))
    if chosen is None or not chosen.is_dir():
        known = ", ".join(str(checkpoint.step_of(path)) for path in checkpoint.steps(root))
        raise UsageError(f"{folder} has no checkpoint '{which[:20]}'; it has best, latest and the steps {known}")
    with reading(chosen):
        checkpoint.verify(chosen)
    return chosen, []
