"""Owns `MeshTransformerTrainer`: the loop bound to the recipe `mesh-transformer`, for use in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from quintet import compat
from quintet.config import build, refuse_changes
from quintet.core.link import Link
from quintet.core.prepare import place_links
from quintet.core.run import Run, next_folder
from quintet.core.trainer import Trainer
from quintet.data.python_meshes import python_mesh_sources
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.families.mesh_transformer.recipe import MeshTransformerRecipe
from quintet.families.mesh_transformer.sources import coded


class MeshTransformerTrainer(Trainer):
    """Train a `MeshTransformer` on the codes of a folder of captioned meshes, or of a data set object.

        tokenizer = open_link("runs/tok")
        model = MeshTransformer(num_codes=tokenizer.model.num_codes, tokens_per_face=tokenizer.model.tokens_per_face)
        MeshTransformerTrainer(model, tokenizer=tokenizer, data="meshes/", out="runs/mesh", steps=10_000).train()

    `open_link` is that of `quintet.runs`. Any configuration key goes through `config={"optim.lr": 1e-4}`. The keywords
    of the trainer in meshgpt-pytorch are accepted too; docs/migration.md says what becomes of each.
    """

    def __init__(
        self,
        model: MeshTransformer | None = None,
        *positional: Any,
        tokenizer: Link | None = None,
        **keywords: Any,
    ) -> None:
        given = positional if model is None else (model, *positional)
        asked = compat.translate("MeshTransformerTrainer", keywords, given)
        compat.announce(asked)
        arguments = asked.arguments
        model = arguments.get("model")
        if not isinstance(model, MeshTransformer):
            raise UsageError(f"MeshTransformerTrainer trains a quintet.MeshTransformer, not a {type(model).__name__}")
        if tokenizer is None:
            raise UsageError("MeshTransformerTrainer needs a tokenizer: tokenizer=quintet.runs.open_link(RUN)")
        data: Any = arguments.get("data")
        if data is None:
            raise UsageError("MeshTransformerTrainer needs data: a folder, or a data set object")
        validation: Any = arguments.get("validation")
        is_folder = isinstance(data, (str, Path))
        keys = {"tokenizer": tokenizer.reference, "model": model.config.model_dump(mode="json")}
        overrides: dict[str, Any] = {**keys, **asked.overrides}
        if is_folder:
            overrides["data.path"] = str(Path(data).resolve())
            if isinstance(validation, (str, Path)):
                overrides["data.validation_path"] = str(Path(validation).resolve())
            elif validation is not None:
                raise UsageError("a validation set comes beside a data set object; beside a folder comes a folder")
        config = build(MeshTransformerConfig, preset=arguments.get("preset"), overrides=overrides)
        resume = bool(arguments.get("resume"))
        out = Path(arguments.get("out") or next_folder("mesh-transformer"))
        run = Run.open(out) if resume else Run.new(out, config.LINKS)
        if resume:
            config = _continued(run, config)
        recipe = MeshTransformerRecipe(config, tokenizer, model)
        sources = None
        if not is_folder:
            place_links(recipe)
            meshes = python_mesh_sources(
                data,
                config.data,
                tokenizer.model.vertices_per_face,
                tokenizer.model.bins,
                validation=validation,
                declared=arguments.get("declared"),
            )
            sources = coded(recipe.config, tokenizer, meshes)
        super().__init__(recipe, run, sources=sources, resume=resume, lr_schedule=arguments.get("lr_schedule"))

    @property
    def unwrapped_model(self) -> nn.Module:
        return self.recipe.modules["transformer"]

    @property
    def ema_model(self) -> nn.Module:
        """The averaged transformer; the live one where averaging is off."""
        return self.state.averaged_nets()["transformer"]


def _continued(run: Run, asked: MeshTransformerConfig) -> MeshTransformerConfig:
    """The run's own configuration; what was asked for may differ in what a resumed run may change."""
    saved = build(MeshTransformerConfig, file=run.config_file)
    # What the run found out at its start, and where its tokenizer lay then: the hash says whether it is the same.
    found = {name: getattr(saved, name) for name in ("preset", "tokenizer", "tokenizer_hash")}
    changed = asked.changed({**found, "optim.horizon": saved.optim.horizon})
    refuse_changes(saved, changed)
    return build(MeshTransformerConfig, overrides=changed.model_dump(mode="json"))
