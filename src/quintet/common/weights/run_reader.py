"""Read-only access to the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

from quintet.common.weights.pretrained import CONFIG, pickle_hint, read_settings
from quintet.config import read_yaml
from quintet.errors import CheckpointError, UsageError

CONFIG_FILE = "config.yaml"


def check_run(folder: Path) -> None:
    """Raise `UsageError` unless `folder` is the folder of a run."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; pass the folder of a run{pickle_hint(folder)}")
    if not (folder / CONFIG_FILE).is_file():
        raise UsageError(f"{folder} is not a run: it has no {CONFIG_FILE}{pickle_hint(folder)}")


def recipe_of(reference: str) -> str | None:
    """The recipe of a run or export, read from its configuration; None if that does not say."""
    text = reference if "@" not in reference or os.path.exists(reference) else reference.rpartition("@")[0]
    folder = Path(text)
    try:
        settings = read_settings(folder) if (folder / CONFIG).is_file() else read_yaml(folder / CONFIG_FILE)
    except (UsageError, CheckpointError):
        return None
    recipe = settings.get("recipe")
    return recipe if isinstance(recipe, str) else None
