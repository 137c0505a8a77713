"""Saving and rebuilding of models with `save`, `load`, `init_and_load` and `from_pretrained`, as folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from quintet.common.weights import checkpoint
from quintet.compat.model import PAGE, CompatModel, refuse_pickle
from quintet.errors import UsageError

ARGUMENTS = "compat_arguments"
"""The file of the arguments of the constructor."""


class Rebuildable(CompatModel):
    """A model whose folder holds the arguments of its constructor."""

    arguments: dict[str, Any]

    def contents(self) -> checkpoint.Contents:
        contents = super().contents()
        contents.json[ARGUMENTS] = self.saved_arguments()
        return contents

    def saved_arguments(self) -> dict[str, Any]:
        return {"class": type(self).__name__, "arguments": self.arguments}

    @classmethod
    def rebuild(cls, saved: Mapping[str, Any]) -> Self:
        """A new model from saved arguments."""
        return cls(**saved["arguments"])

    def save(self, path: str | Path, overwrite: bool = True) -> None:
        """Write the folder `path`; a folder that `save` wrote is replaced if `overwrite`."""
        if not overwrite and Path(path).exists():
            raise UsageError(f"{path} exists; choose another path, or pass overwrite=True")
        super().save(path)

    def save_pretrained(self, save_directory: str | Path) -> None:
        self.save(save_directory)

    def load(self, path: str | Path, strict: bool = True) -> Self:
        return super().load(path)

    @classmethod
    def init_and_load(cls, path: str | Path, strict: bool = True) -> Self:
        """The model of a folder that `save` wrote."""
        folder = Path(path)
        refuse_pickle(folder)
        saved = checkpoint.read_json(folder, ARGUMENTS)
        if not isinstance(saved, dict) or saved.get("class") != cls.__name__:
            raise UsageError(f"{folder} does not hold a {cls.__name__} that `save` of quintet.compat wrote")
        return cls.rebuild(saved).load(folder)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path) -> Self:
        """The model of a local folder that `save` or `save_pretrained` wrote."""
        if not Path(pretrained_model_name_or_path).exists():
            raise UsageError(
                f"{pretrained_model_name_or_path} is not a local folder, and nothing is downloaded (see {PAGE})"
            )
        return cls.init_and_load(pretrained_model_name_or_path)


def plain(arguments: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """The `locals()` of a constructor as JSON values."""
    skipped = {"self", "__class__", *without}
    return {name: _plain(value) for name, value in arguments.items() if name not in skipped}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
