"""Owns `MeshAutoencoderTrainer`: the loop bound to the recipe `mesh-autoencoder`, for use in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from quintet import compat
from quintet.config import build, refuse_changes
from quintet.core.run import Run, next_folder
from quintet.core.trainer import Trainer
from quintet.data.python_meshes import python_mesh_sources
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.model import MeshAutoencoder
from quintet.families.mesh_autoencoder.recipe import MeshAutoencoderRecipe


class MeshAutoencoderTrainer(Trainer):
    """Train a `MeshAutoencoder` on a folder or a data set object.

        MeshAutoencoderTrainer(MeshAutoencoder(bins=128), data="meshes/", out="runs/tok", steps=10_000).train()

    Any configuration key goes through `config={"optim.lr": 1e-4}`. The keywords of the trainer in meshgpt-pytorch are
    accepted too; docs/migration.md says what becomes of each.
    """

    def __init__(self, model: MeshAutoencoder | None = None, *positional: Any, **keywords: Any) -> None:
        given = positional if model is None else (model, *positional)
        asked = compat.translate("MeshAutoencoderTrainer", keywords, given)
        compat.announce(asked)
        arguments = asked.arguments
        model = arguments.get("model")
        if not isinstance(model, MeshAutoencoder):
            raise UsageError(f"MeshAutoencoderTrainer trains a quintet.MeshAutoencoder, not a {type(model).__name__}")
        data: Any = arguments.get("data")
        if data is None:
            raise UsageError("MeshAutoencoderTrainer needs data: a folder, or a data set object")
        validation: Any = arguments.get("validation")
        is_folder = isinstance(data, (str, Path))
        overrides = {"model": model.config.model_dump(mode="json"), **asked.overrides}
        if is_folder:
            overrides["data.path"] = str(Path(data).resolve())
            if isinstance(validation, (str, Path)):
                overrides["data.validation_path"] = str(Path(validation).resolve())
            elif validation is not None:
                raise UsageError("a validation set comes beside a data set object; beside a folder comes a folder")
        config = build(MeshAutoencoderConfig, preset=arguments.get("preset"), overrides=overrides)
        resume = bool(arguments.get("resume"))
        out = Path(arguments.get("out") or next_folder("mesh-autoencoder"))
        run = Run.open(out) if resume else Run.new(out)
        if resume:
            config = _continued(run, config)
        sources = None
        if not is_folder:
            sources = python_mesh_sources(
                data,
                config.data,
                model.vertices_per_face,
                model.bins,
                validation=validation,
                declared=arguments.get("declared"),
            )
        super().__init__(
            MeshAutoencoderRecipe(config, model),
            run,
            sources=sources,
            resume=resume,
            lr_schedule=arguments.get("lr_schedule"),
        )

    @property
    def unwrapped_model(self) -> nn.Module:
        return self.recipe.modules["autoencoder"]

    @property
    def ema_model(self) -> nn.Module:
        """The averaged tokenizer; the live one where averaging is off."""
        return self.state.averaged_nets()["autoencoder"]


def _continued(run: Run, asked: MeshAutoencoderConfig) -> MeshAutoencoderConfig:
    """The run's own configuration; what was asked for may differ in what a resumed run may change."""
    saved = build(MeshAutoencoderConfig, file=run.config_file)
    fixed = {"preset": saved.preset, "optim.horizon": saved.optim.horizon}
    changed = asked.changed(fixed)
    refuse_changes(saved, changed)
    return build(MeshAutoencoderConfig, overrides=changed.model_dump(mode="json"))
