"""Configuration keys of the recipe `muse` and options of its pipeline.

Does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from quintet.config import EncodingConfig, ImageDataConfig, NegativePromptOptions
from quintet.config.masked import MaskGitRunConfig
from quintet.config.presets import (
    BASE_GENERATOR,
    BASE_TEXT,
    BASE_VOCABULARY,
    DEBUG_GENERATOR,
    DEBUG_TEXT,
    FEW_GENERATOR,
    SMALL_GENERATOR,
    preset,
)


class MuseDataConfig(EncodingConfig, ImageDataConfig):
    flip: bool = Field(
        False,
        description="Flip half of the images horizontally; leave it off if captions name left or right.",
    )
    variants: int = Field(
        1, ge=1, le=1000, description="Number of augmented variants (flips, crops) of each image in the token cache."
    )
    allow_missing_captions: bool = Field(
        False, description="Train a text-conditional model even if some items have no caption."
    )


class MuseOptions(NegativePromptOptions):
    image: Path | None = Field(None, description="Image file to inpaint; requires --mask.")
    mask: Path | None = Field(
        None,
        description="Image file of the same size as --image: white pixels are generated, black pixels are preserved.",
    )


class MuseConfig(MaskGitRunConfig):
    OPTIONS = MuseOptions
    FROZEN_KEYS = ("tokenizer", "base")
    PRESETS: ClassVar = {
        "debug": preset(DEBUG_GENERATOR, DEBUG_TEXT, sample={"steps": 4}),
        # For two CPU cores and about an hour.
        "small": preset(
            SMALL_GENERATOR,
            model={"text": "words", "text_dim": 96, "rotary": True, "code_patch_size": "auto"},
            loss={"codebook_smoothing": 1.0, "label_smoothing": 0.0},
            train={"steps": 10_000, "batch_size": 64},
            sample={"steps": 24, "temperature": 0.6, "choice_temperature": 12.0},
        ),
        "base": preset(BASE_GENERATOR, BASE_TEXT, BASE_VOCABULARY),
        # Crops do not change what a caption says, as flips would.
        "few": preset(FEW_GENERATOR, data={"random_crop": True, "variants": 8}),
    }

    recipe: Literal["muse"] = Field("muse", description="Recipe of the run.")
    tokenizer: str | None = Field(None, description="Trained image tokenizer: RUN, RUN@STEP or an exported folder.")
    tokenizer_hash: str | None = Field(
        None, description="SHA-256 of the tokenizer's weights, recorded when the run starts."
    )
    base: str | None = Field(
        None,
        description="Trained muse run whose images this super-resolution model enlarges; null: this is a base model.",
    )
    base_hash: str | None = Field(
        None, description="SHA-256 of the base model's weights, recorded when the run starts."
    )
    data: MuseDataConfig = Field(default_factory=MuseDataConfig, description="Training data.")
