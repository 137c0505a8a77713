"""Configuration keys of the recipe `phenaki` and options of its pipeline.

Does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import EncodingConfig, NegativePromptOptions, VideoDataConfig
from quintet.config.masked import MaskGitLossConfig, MaskGitRunConfig, MaskGitSampleConfig
from quintet.config.presets import (
    BASE_GENERATOR,
    BASE_TEXT,
    BASE_VOCABULARY,
    DEBUG_GENERATOR,
    DEBUG_TEXT,
    SMALL_GENERATOR,
    preset,
)


class PhenakiDataConfig(EncodingConfig, VideoDataConfig):
    variants: int = Field(
        1,
        ge=1,
        le=1000,
        description="Number of augmented variants (start frames, flips, crops) of each clip in the token cache.",
    )
    allow_missing_captions: bool = Field(
        False, description="Train a text-conditional model even if some items have no caption."
    )


class PhenakiLossConfig(MaskGitLossConfig):
    frame_autoregressive: bool = Field(
        False,
        description="Predict latent frames one after another, each from all earlier ones, instead of all at once.",
    )
    first_frame_prob: float = Field(
        0.5,
        ge=0,
        le=1,
        description="With loss.frame_autoregressive: fraction of clips whose first latent frame is predicted; "
        "for the other clips, a random later latent frame is predicted.",
    )
    continuation_prob: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Without loss.frame_autoregressive: fraction of clips trained as continuation, "
        "with the first latent frames given.",
    )


class PhenakiSampleConfig(MaskGitSampleConfig):
    later_steps: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="With loss.frame_autoregressive: number of decoding steps of each latent frame after the first; "
        "null: sample.steps.",
    )
    frames: int | None = Field(None, gt=0, description="Number of frames of a generated video; null: data.frames.")
    overlap: int | None = Field(
        None,
        gt=0,
        description="Number of frames from which a longer video or the next scene continues; null: about a third of "
        "data.frames.",
    )
    fps: float | None = Field(
        None, gt=0, le=1000, description="Frame rate of written videos, in frames per second; null: data.fps, or 8."
    )
    texts: tuple[str, ...] | str | None = Field(
        None,
        description="Prompts of the samples during training: a list, or a file with one prompt per line; they are "
        "repeated up to sample.num videos; null: captions of validation clips.",
    )

    @field_validator("texts")
    @classmethod
    def _some_texts(cls, texts: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        if texts is not None and not texts:
            raise ValueError("give at least one prompt, or null for the captions of the validation set")
        return texts


class PhenakiOptions(NegativePromptOptions):
    prime: Path | None = Field(None, description="Video or image file to continue.")
    scenes: Path | None = Field(
        None, description="Text file with one prompt per line: generates one video that shows these scenes in order."
    )
    frames: int | None = Field(
        None,
        ge=1,
        description="Number of frames of a video, including those of --prime; with --scenes, of each scene.",
    )
    images: bool = Field(False, description="Generate images instead of videos.")


class PhenakiConfig(MaskGitRunConfig):
    OPTIONS = PhenakiOptions
    FROZEN_KEYS = ("tokenizer",)
    PRESETS: ClassVar = {
        "debug": preset(DEBUG_GENERATOR, DEBUG_TEXT, model={"rotary": True}, data={"frames": 5}, sample={"steps": 4}),
        # For two CPU cores and less than an hour.
        "small": preset(
            SMALL_GENERATOR,
            model={"rotary": True, "text": "words", "text_dim": 96},
            # The first latent frame, which holds the image, is the hard part.
            loss={
                "frame_autoregressive": True,
                "codebook_smoothing": 0.5,
                "label_smoothing": 0.0,
                "first_frame_prob": 0.88,
            },
            train={"steps": 5000, "batch_size": 64},
            sample={"steps": 18, "later_steps": 6, "overlap": 5, "temperature": 0.4, "choice_temperature": 4.5}
            | {"num": 8, "every": 2000},
            eval={"num_generated": 200},
        ),
        # A clip has 2,304 tokens, whose activations need gigabytes.
        "base": preset(
            BASE_GENERATOR,
            BASE_TEXT,
            BASE_VOCABULARY,
            model={"rotary": True},
            engine={"activation_checkpointing": True},
        ),
    }

    recipe: Literal["phenaki"] = Field("phenaki", description="Recipe of the run.")
    tokenizer: str | None = Field(None, description="Trained video tokenizer: RUN, RUN@STEP or an exported folder.")
    tokenizer_hash: str | None = Field(
        None, description="SHA-256 of the tokenizer's weights, recorded when the run starts."
    )
    data: PhenakiDataConfig = Field(default_factory=PhenakiDataConfig, description="Training data.")
    loss: PhenakiLossConfig = Field(default_factory=PhenakiLossConfig, description="Losses.")
    sample: PhenakiSampleConfig = Field(
        default_factory=PhenakiSampleConfig, description="Decoding, during training and in `quintet sample`."
    )

    @model_validator(mode="after")
    def _check_video_model(self) -> PhenakiConfig:
        if self.model.low_res_grid is not None:
            raise ValueError("model.low_res_grid is for super-resolution of images; phenaki does not support it")
        if isinstance(self.model.code_patch_size, tuple) and self.model.code_patch_size[0] != 1:
            raise ValueError(
                f"model.code_patch_size={list(self.model.code_patch_size)} must start with 1: a token may not "
                "span several latent frames"
            )
        if self.model.grid is not None and len(self.model.grid) not in (3, 4):
            raise ValueError(
                f"model.grid={list(self.model.grid)} must have 3 or 4 axes: latent frames, rows, columns[, quantizers]"
            )
        return self
