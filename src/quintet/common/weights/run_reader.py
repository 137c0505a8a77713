"""The folder of a run, for those who only read it."""

from __future__ import annotations

import os
from pathlib import Path

from quintet.common.weights.pretrained import CONFIG, pickle_hint, read_settings
from quintet.config import read_yaml
from quintet.errors import UsageError

CONFIG_FILE = "config.yaml"


def check_run(folder: Path) -> None:
    """Refuse what is not the folder of a run."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; give the folder of a run{pickle_hint(folder)}")
    if not (folder / CONFIG_FILE).is_file():
        raise UsageError(f"{folder} is not a run: it has no {CONFIG_FILE}{pickle_hint(folder)}")


def recipe_of(reference: str) -> str:
    """The recipe of a run or export, from its configuration alone; `UsageError` where there is none."""
    text = reference if "@" not in reference or os.path.exists(reference) else reference.rpartition("@")[0]
    folder = Path(text)
    if (folder / CONFIG).is_file():
        return str(read_settings(folder).get("recipe"))
    check_run(folder)
    recipe = read_yaml(folder / CONFIG_FILE).get("recipe")
    if not isinstance(recipe, str):
        raise UsageError(f"{folder / CONFIG_FILE} does not say which recipe it is for")
    return recipe
