"""Owns the keys of the recipe `muse`. Free of torch, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from quintet.config import NegativePromptOptions, PictureDataConfig
from quintet.config.masked import MaskGitRunConfig


class MuseDataConfig(PictureDataConfig):
    flip: bool = Field(
        False, description="Mirror half of the pictures; captions that name sides would contradict them."
    )
    variants: int = Field(
        1, ge=1, le=1000, description="Augmented variants of each picture in the code cache (flips, crops)."
    )
    empty_captions: bool = Field(False, description="Train a text model although pictures without caption are there.")


class MuseOptions(NegativePromptOptions):
    image: Path | None = Field(None, description="An image to draw on; needs --mask.")
    mask: Path | None = Field(
        None, description="An image as large as --image: its white part is generated, the rest stays."
    )


class MuseConfig(MaskGitRunConfig):
    OPTIONS = MuseOptions
    LINKS: ClassVar[tuple[str, ...]] = ("tokenizer", "base")
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "debug": {
            "model.dim": 32,
            "model.depth": 2,
            "model.heads": 2,
            "model.text_dim": 32,
            "model.text_depth": 1,
            "model.text_heads": 2,
            "train.steps": 20,
            "train.batch_size": 8,
            "sample.steps": 4,
            "eval.every": 10,
            "eval.generated": 8,
            "sample.every": 10,
            "sample.num": 4,
            "checkpoint.every": 10,
            "log.every": 5,
            "data.workers": 0,
        },
        # Two CPU cores, minutes.
        "small": {
            "model.dim": 128,
            "model.depth": 6,
            "model.heads": 4,
            "model.text_dim": 96,
            "train.steps": 10_000,
            "train.batch_size": 16,
            "model.rotary": True,
            "optim.name": "muon",
            "optim.lr": 3e-3,
            "optim.matrix_lr": 0.01,
            "optim.warmup_steps": 150,
            "optim.clip": 1.0,
            "sample.steps": 24,
            "sample.temperature": 0.6,
            "sample.choice_noise": 12.0,
            "eval.every": 1000,
            "sample.every": 1000,
            "checkpoint.every": 500,
            "data.workers": 0,
        },
        "base": {
            "model.dim": 1024,
            "model.depth": 24,
            "model.heads": 16,
            "model.text_dim": 512,
            "model.text_depth": 6,
            "train.steps": 500_000,
            "train.batch_size": 256,
            "optim.lr": 1e-4,
            "optim.warmup_steps": 5000,
            "optim.clip": 1.0,
            "ema.decay": 0.9999,
            "eval.every": 5000,
            "sample.every": 5000,
            "checkpoint.every": 5000,
            "engine.precision": "bf16",
            "data.workers": 4,
        },
    }

    recipe: Literal["muse"] = Field("muse", description="What is trained.")
    tokenizer: str | None = Field(None, description="The trained tokenizer: RUN, RUN@step, or an exported folder.")
    tokenizer_hash: str | None = Field(None, description="Of its weights; none: that of the tokenizer, from then on.")
    base: str | None = Field(
        None, description="The trained muse whose pictures this one draws larger; none: draw from nothing."
    )
    base_hash: str | None = Field(None, description="Of its weights; none: that of the base, from then on.")
    data: MuseDataConfig = Field(default_factory=MuseDataConfig, description="The files.")
