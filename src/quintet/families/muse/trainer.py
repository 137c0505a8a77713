"""Owns `MuseTrainer`: the loop bound to the recipe `muse`, for use in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quintet.config import build
from quintet.core.link import Link
from quintet.core.run import Run, next_folder
from quintet.core.trainer import Trainer
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.recipe import MuseRecipe
from quintet.nn.maskgit import MaskGit


class MuseTrainer(Trainer):
    """Train a `MaskGit` on the codes of a folder of captioned pictures.

        MuseTrainer(tokenizer=open_link("runs/tok"), data="photos/", out="runs/muse").train()

    `open_link` is that of `quintet.runs`. With a `base`, a trained muse, it learns to draw the base's pictures larger.
    Any configuration key goes through `config={"optim.lr": 1e-4}`.
    """

    def __init__(
        self,
        maskgit: MaskGit | None = None,
        *,
        tokenizer: Link,
        base: Link | None = None,
        data: str | Path,
        out: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        overrides: dict[str, Any] = {"tokenizer": tokenizer.reference, "data.path": str(Path(data).resolve())}
        if base is not None:
            overrides["base"] = base.reference
        if maskgit is not None:
            overrides["model"] = maskgit.config.model_dump(mode="json")
        built = build(MuseConfig, overrides={**overrides, **(config or {})})
        if built.init:
            raise UsageError("in Python, load the weights into the model that you hand over, instead of the key `init`")
        torch.manual_seed(built.train.seed)
        run = Run.new(Path(out) if out is not None else next_folder("muse"), built.LINKS)
        super().__init__(MuseRecipe(built, tokenizer, base, maskgit), run)
