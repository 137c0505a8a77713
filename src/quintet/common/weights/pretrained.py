"""`Pretrained`: export of a model to `config.json`, `model.safetensors` and a model card, and loading it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn

from quintet.common.files import refuse_existing
from quintet.common.weights import checkpoint, lora, named, tensor_groups
from quintet.common.weights.loading import copy_tensors
from quintet.config import Section, migrated
from quintet.errors import UsageError

CONFIG = "config.json"
WEIGHTS = "model"


class Pretrained:
    """Mixin for models that are built from keyword arguments and store them as `self.config`."""

    CONFIG: ClassVar[type[Section]] = Section
    """The schema of the keyword arguments."""

    def save_pretrained(self, folder: str | Path, **metadata: Any) -> None:
        """Write the folder that `from_pretrained` reads. `metadata` is added to config.json."""
        export_model(self, Path(folder), metadata)  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Load the model of an exported folder, `starter:NAME` or `hub:USER/NAME`, on the CPU and in eval mode."""
        path = named.fetch(str(folder)).folder if named.is_named(folder) else Path(folder)
        checkpoint.verify_used(path)
        settings = read_settings(path)
        if settings.get("class") != cls.__name__:
            raise UsageError(f"{path} holds a {settings.get('class')}, not a {cls.__name__}")
        model = cls(**migrated(cls.CONFIG, settings["model"], "model"))
        assert isinstance(model, nn.Module)
        copy_tensors(model, tensor_groups.read_tensors(path, WEIGHTS), str(path / f"{WEIGHTS}.safetensors"))
        model.eval()
        return model


def export_model(model: nn.Module, folder: Path, metadata: dict[str, Any]) -> None:
    refuse_existing(folder, "choose another folder")
    checkpoint.write_folder(folder, export_contents(model, metadata))


def export_contents(model: nn.Module, metadata: dict[str, Any]) -> checkpoint.Contents:
    """The files of an exported folder."""
    config: Section = model.config  # type: ignore[assignment]
    settings = {"class": type(model).__name__, "model": config.model_dump(mode="json"), **metadata}
    return checkpoint.Contents(
        tensors={WEIGHTS: lora.merged(model.state_dict())},
        json={CONFIG.removesuffix(".json"): settings},
        text={"README.md": _card(settings)},
    )


def read_settings(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} is not an exported model: it has no {CONFIG}{pickle_hint(folder)}")
    settings = checkpoint.read_json(folder, CONFIG.removesuffix(".json"))
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise UsageError(f"{path} is not the configuration of an exported model")
    return settings


def _card(settings: dict[str, Any]) -> str:
    rows = "".join(f"| {name} | {value} |\n" for name, value in settings["model"].items())
    metrics = settings.get("figures", {})
    measured = "".join(f"| {name} | {value:.4g} |\n" for name, value in metrics.items())
    table = f"\n## Metrics on its validation set\n| metric | value |\n|---|---|\n{measured}" if measured else ""
    loader = "quintet.pipelines.base.Pipeline" if "recipe" in settings else f"quintet.{settings['class']}"
    return (
        f"---\nlibrary_name: quintet\ntags: [quintet, {settings.get('recipe', '')}]\n---\n"
        f"# {settings['class']}\n\nTrained with quintet. Load it with "
        f"`{loader}.from_pretrained(FOLDER)`.\n\n"
        f"## Settings\n| key | value |\n|---|---|\n{rows}{table}"
    )


def pickle_hint(path: Path) -> str:
    """A hint for pickled checkpoints of other packages, which quintet never opens."""
    suffixes = {path.suffix.lower()} if not path.is_dir() else {inside.suffix.lower() for inside in path.iterdir()}
    if suffixes & {".pt", ".pth", ".ckpt", ".bin", ".pkl"}:
        return "; quintet never opens pickled checkpoints of other packages, see docs/migration.md"
    return ""
