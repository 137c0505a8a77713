"""Read-only access to the folder of a run.

The last line of a run's `config.yaml` is a comment with the hash of the lines above it, by which an edited or damaged
configuration is recognised.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from quintet.common.weights import named
from quintet.common.weights.pretrained import CONFIG, pickle_hint, read_settings
from quintet.config import RunConfig, migrated, read_yaml
from quintet.config.tree import Tree
from quintet.errors import CheckpointError, UsageError

CONFIG_FILE = "config.yaml"
_HASH = "# sha256 of the lines above: "


def with_hash(text: str) -> str:
    """A configuration with the line that `is_as_written` checks."""
    return f"{text}{_HASH}{hashlib.sha256(text.encode()).hexdigest()}\n"


def is_as_written(folder: Path) -> bool:
    """Whether the configuration of a run is as quintet wrote it; False if it has no hash, as in older runs."""
    text = _config_text(folder)
    return text == with_hash(text.rpartition(_HASH)[0])


def was_edited(folder: Path) -> bool:
    """Whether the configuration of a run has a hash that does not match."""
    return _HASH in _config_text(folder) and not is_as_written(folder)


def _config_text(folder: Path) -> str:
    return (folder / CONFIG_FILE).read_bytes().decode("utf-8", errors="replace")


def check_run(folder: Path) -> None:
    """Raise `UsageError` unless `folder` is the folder of a run."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; pass the folder of a run{pickle_hint(folder)}")
    if not (folder / CONFIG_FILE).is_file():
        raise UsageError(f"{folder} is not a run: it has no {CONFIG_FILE}{pickle_hint(folder)}")


def recipe_of(reference: str) -> str | None:
    """The recipe of a run or export, read from its configuration; None if that does not say."""
    recipe = _settings_of(reference).get("recipe")
    return recipe if isinstance(recipe, str) else None


def model_keys(reference: str, recipe: str, schema: type[RunConfig]) -> Tree:
    """The section `model` of a run or export of this recipe, as a tree of keys, without those that it recorded from its
    data; empty if it cannot be read, which opening it explains."""
    settings = _settings_of(reference)
    settings = settings["run"] if isinstance(settings.get("run"), dict) else settings
    model = settings.get("model")
    if settings.get("recipe") != recipe or not isinstance(model, dict):
        return {}
    keys = migrated(schema, {"model": model})["model"]
    return {"model": {key: value for key, value in keys.items() if key not in schema.RECORDED}}


def _settings_of(reference: str) -> Tree:
    """The configuration of a run, or that in an export with its recipe; empty if there is none."""
    reference = str(named.fetch(reference).folder) if named.is_named(reference) else reference
    text = reference if "@" not in reference or os.path.exists(reference) else reference.rpartition("@")[0]
    folder = Path(text)
    try:
        return read_settings(folder) if (folder / CONFIG).is_file() else read_yaml(folder / CONFIG_FILE)
    except (UsageError, CheckpointError):
        return {}
