"""The task of a plan: built on `meta`, with untrained models in the place of frozen ones that do not exist yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quintet import config as configs
from quintet import registry
from quintet.common.memory import building
from quintet.config import RunConfig
from quintet.pipelines.base import Origin, Pipeline
from quintet.pipelines.loading import open_pipeline
from quintet.training.finetuning import choose_parameters
from quintet.training.task import Task


def planned_task(config: RunConfig, preset: str | None = None) -> Task[Any]:
    """The task of a configuration, without weights.

    Frozen models that it names are opened. In the place of a tokenizer that it does not name there is an untrained one
    of the recipe that the registry names, with the preset of the same name."""
    entry = registry.find(config.recipe)
    frozen: dict[str, Pipeline[Any]] = {}
    for key in config.FROZEN_KEYS:
        if getattr(config, key):
            frozen[key] = open_pipeline(str(getattr(config, key))).freeze()
        elif key in entry.frozen:
            frozen[key] = untrained_pipeline(entry.frozen[key], preset)
    return task_on_meta(config, frozen)


def task_on_meta(config: RunConfig, frozen: Mapping[str, Pipeline[Any]]) -> Task[Any]:
    """A new task whose modules have no contents."""
    entry = registry.find(config.recipe)
    pipeline_class = entry.pipeline_class()
    with building(config):
        fitted = pipeline_class.fit(config, frozen)
        with torch.device("meta"):
            modules = pipeline_class.build_modules(fitted, frozen)
        # They are passed in, so that the task does not initialise them from the codebook of a tokenizer.
        task = entry.task_class()(config, frozen, modules)
    choose_parameters(task)
    return task


def untrained_pipeline(recipe: str, preset: str | None, device: str = "meta") -> Pipeline[Any]:
    """A model of a recipe as a preset has it, before it is trained; on `meta` it has no contents."""
    entry = registry.find(recipe)
    schema = entry.config_class()
    config: RunConfig = configs.build(schema, preset=preset if preset in schema.PRESETS else None)
    pipeline_class = entry.pipeline_class()
    with building(config), torch.device(device):
        modules = pipeline_class.build_modules(config, {})
        pipeline = pipeline_class(config, modules, {}, Origin(Path(f"untrained {recipe}"), builtin=True))
    # In the place of the hash of its weights, which it does not have.
    pipeline.__dict__["digest"] = "0" * 64
    return pipeline.freeze()
