"""Owns the keys of the recipe `muse`. Free of torch, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from quintet.config import ImageDataConfig, NegativePromptOptions
from quintet.config.masked import MaskGitRunConfig
from quintet.config.presets import BASE_GENERATOR, BASE_TEXT, DEBUG_GENERATOR, DEBUG_TEXT, SMALL_GENERATOR, preset


class MuseDataConfig(ImageDataConfig):
    flip: bool = Field(
        False, description="Mirror half of the pictures; captions that name sides would contradict them."
    )
    variants: int = Field(
        1, ge=1, le=1000, description="Augmented variants of each picture in the code cache (flips, crops)."
    )
    allow_missing_captions: bool = Field(
        False, description="Train a text model although pictures without caption are there."
    )


class MuseOptions(NegativePromptOptions):
    image: Path | None = Field(None, description="An image to draw on; needs --mask.")
    mask: Path | None = Field(
        None, description="An image as large as --image: its white part is generated, the rest stays."
    )


class MuseConfig(MaskGitRunConfig):
    OPTIONS = MuseOptions
    FROZEN_KEYS = ("tokenizer", "base")
    PRESETS: ClassVar = {
        "debug": preset(DEBUG_GENERATOR, DEBUG_TEXT, sample={"steps": 4}),
        # Two CPU cores, minutes.
        "small": preset(
            SMALL_GENERATOR,
            model={"text_dim": 96, "rotary": True},
            train={"steps": 10_000},
            sample={"steps": 24, "temperature": 0.6, "choice_temperature": 12.0},
        ),
        "base": preset(BASE_GENERATOR, BASE_TEXT),
    }

    recipe: Literal["muse"] = Field("muse", description="What is trained.")
    tokenizer: str | None = Field(None, description="The trained tokenizer: RUN, RUN@step, or an exported folder.")
    tokenizer_hash: str | None = Field(None, description="Of its weights; none: that of the tokenizer, from then on.")
    base: str | None = Field(
        None, description="The trained muse whose pictures this one draws larger; none: draw from nothing."
    )
    base_hash: str | None = Field(None, description="Of its weights; none: that of the base, from then on.")
    data: MuseDataConfig = Field(default_factory=MuseDataConfig, description="The files.")
