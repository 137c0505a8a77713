"""Owns `VQGanVAETrainer`: the loop bound to the recipe `vqgan`, for use in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from quintet import compat
from quintet.config import build, refuse_changes
from quintet.core.run import Run, next_folder
from quintet.core.trainer import Trainer
from quintet.data.pictures import python_sources
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.recipe import VQGanRecipe


class VQGanVAETrainer(Trainer):
    """Train a `VQGanVAE` on a folder or a data set object.

        VQGanVAETrainer(VQGanVAE(dim=64, image_size=128), data="photos/", out="runs/tok", steps=10_000).train()

    Any configuration key goes through `config={"optim.lr": 1e-4}`. The keywords of the trainer in
    muse-maskgit-pytorch are accepted too; docs/migration.md says what becomes of each.
    """

    def __init__(self, vae: VQGanVAE | None = None, *positional: Any, **keywords: Any) -> None:
        given = keywords if vae is None else {"model": vae, **keywords}
        asked = compat.translate("VQGanVAETrainer", given, positional)
        compat.announce(asked)
        arguments = asked.arguments
        model = arguments.get("model")
        if not isinstance(model, VQGanVAE):
            raise UsageError(f"VQGanVAETrainer trains a quintet.VQGanVAE, not a {type(model).__name__}")
        _check_image_size(model, arguments.get("image_size"))
        data: Any = arguments.get("data")
        if data is None:
            raise UsageError("VQGanVAETrainer needs data: a folder, or a data set object")
        is_folder = isinstance(data, (str, Path))
        overrides = {"model": model.config.model_dump(mode="json"), **asked.overrides}
        if is_folder:
            overrides["data.path"] = str(Path(data).resolve())
        config = build(VQGanConfig, preset=arguments.get("preset"), overrides=overrides)
        resume = bool(arguments.get("resume"))
        out = Path(arguments.get("out") or next_folder("vqgan"))
        run = Run.open(out) if resume else Run.new(out)
        if resume:
            config = _continued(run, config)
        sources = None
        if not is_folder:
            sources = python_sources(
                data,
                config.data,
                model.config.size,
                model.config.channels,
                validation=arguments.get("validation"),
                declared=arguments.get("declared"),
            )
        elif arguments.get("validation") is not None:
            raise UsageError("a validation set comes beside a data set object; for folders use data.validation_path")
        super().__init__(
            VQGanRecipe(config, model), run, sources=sources, resume=resume, lr_schedule=arguments.get("lr_schedule")
        )

    @property
    def unwrapped_model(self) -> nn.Module:
        return self.recipe.modules["vae"]

    @property
    def ema_model(self) -> nn.Module:
        """The averaged tokenizer; the live one where averaging is off."""
        return self.state.averaged_nets()["vae"]


def _check_image_size(model: VQGanVAE, image_size: Any) -> None:
    if image_size is not None and (image_size, image_size) != model.config.size:
        raise UsageError(f"image_size={image_size}, but the model was built for image_size={model.config.image_size}")


def _continued(run: Run, asked: VQGanConfig) -> VQGanConfig:
    """The run's own configuration; what was asked for may differ in what a resumed run may change."""
    saved = build(VQGanConfig, file=run.config_file)
    fixed = {"preset": saved.preset, "optim.horizon": saved.optim.horizon}
    changed = asked.changed(fixed)
    refuse_changes(saved, changed)
    return build(VQGanConfig, overrides=changed.model_dump(mode="json"))
