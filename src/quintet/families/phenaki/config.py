"""The keys of the recipe `phenaki`, and the options of its pipeline. Free of torch, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import NegativePromptOptions, VideoDataConfig
from quintet.config.masked import MaskGitLossConfig, MaskGitRunConfig, MaskGitSampleConfig


class PhenakiDataConfig(VideoDataConfig):
    variants: int = Field(
        1, ge=1, le=1000, description="Variants of each clip in the code cache (other beginnings, flips, crops)."
    )
    empty_captions: bool = Field(False, description="Train a text model although clips without caption are there.")


class PhenakiLossConfig(MaskGitLossConfig):
    order: Literal["together", "moments"] = Field(
        "together",
        description="What is guessed at once: all moments of a clip, as in the paper, or one after the other, each "
        "from all before it.",
    )
    first_moment: float = Field(
        0.5,
        ge=0,
        le=1,
        description="In the order of moments: share of clips whose first one is guessed, for which the text is all "
        "there is to go by; the later ones share the rest.",
    )
    primed: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Of moments that are guessed together: share of clips of which the first ones are given, as in "
        "going on from a clip.",
    )


class PhenakiSampleConfig(MaskGitSampleConfig):
    later_steps: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="In the order of moments: decoding steps of each one behind the first, of which less is left open; "
        "none: sample.steps.",
    )
    frames: int | None = Field(None, gt=0, description="Frames of a video; none: as many as the model was trained on.")
    overlap: int | None = Field(
        None,
        gt=0,
        description="Frames that a longer video or the next scene goes on from; none: about a third of the model's.",
    )
    fps: float | None = Field(
        None, gt=0, le=1000, description="Frames a second of what is written; none: data.fps, or 8."
    )
    texts: tuple[str, ...] | str | None = Field(
        None,
        description="What is made while training: a list of captions, or a file with one on each line; none: the "
        "captions of validation clips.",
    )

    @field_validator("texts")
    @classmethod
    def _some_texts(cls, texts: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        if texts is not None and not texts:
            raise ValueError("give at least one caption, or none for those of the validation set")
        return texts


class PhenakiOptions(NegativePromptOptions):
    prime: Path | None = Field(None, description="A video or an image to continue.")
    scenes: Path | None = Field(
        None, description="A file with a text on each line: one video of these scenes, one after another."
    )
    frames: int | None = Field(
        None, ge=1, description="Frames of a video, those of --prime included; with --scenes, frames that each adds."
    )
    images: bool = Field(False, description="Images instead of videos.")


class PhenakiConfig(MaskGitRunConfig):
    OPTIONS = PhenakiOptions
    LINKS: ClassVar[tuple[str, ...]] = ("tokenizer",)
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "debug": {
            "model.dim": 32,
            "model.depth": 2,
            "model.heads": 2,
            "model.rotary": True,
            "model.text_dim": 32,
            "model.text_depth": 1,
            "model.text_heads": 2,
            "data.frames": 5,
            "data.workers": 0,
            "train.steps": 20,
            "train.batch_size": 8,
            "sample.steps": 4,
            "eval.every": 10,
            "eval.generated": 8,
            "sample.every": 10,
            "sample.num": 4,
            "checkpoint.every": 10,
            "log.every": 5,
        },
        # Two CPU cores, within an hour.
        "small": {
            "model.dim": 128,
            "model.depth": 6,
            "model.heads": 4,
            "model.rotary": True,
            "model.text": "words",
            "model.text_dim": 96,
            "loss.order": "moments",
            "loss.alike": 0.5,
            "loss.label_smoothing": 0.0,
            "loss.first_moment": 0.88,  # the picture is the hard part
            "train.steps": 14_000,
            "train.batch_size": 16,
            "optim.name": "muon",
            "optim.lr": 3e-3,
            "optim.matrix_lr": 0.01,
            "optim.warmup_steps": 150,
            "optim.clip": 1.0,
            "sample.steps": 18,
            "sample.later_steps": 6,
            "sample.overlap": 5,
            "sample.temperature": 0.4,
            "sample.choice_noise": 4.5,
            "sample.num": 8,
            "eval.every": 1000,
            "eval.generated": 200,
            "sample.every": 2000,
            "checkpoint.every": 500,
            "data.workers": 0,
        },
        "base": {
            "model.dim": 1024,
            "model.depth": 24,
            "model.heads": 16,
            "model.rotary": True,
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

    recipe: Literal["phenaki"] = Field("phenaki", description="What is trained.")
    tokenizer: str | None = Field(
        None, description="The trained tokenizer of video: RUN, RUN@step, or an exported folder."
    )
    tokenizer_hash: str | None = Field(None, description="Of its weights; none: that of the tokenizer, from then on.")
    data: PhenakiDataConfig = Field(default_factory=PhenakiDataConfig, description="The files.")
    loss: PhenakiLossConfig = Field(default_factory=PhenakiLossConfig, description="What it is trained for.")
    sample: PhenakiSampleConfig = Field(
        default_factory=PhenakiSampleConfig, description="Decoding, here and while training."
    )

    @model_validator(mode="after")
    def _makes_videos(self) -> PhenakiConfig:
        if self.model.low_grid is not None:
            raise ValueError("model.low_grid is for pictures that are drawn larger; there is no such model of videos")
        if self.model.merge is not None and self.model.merge[0] != 1:
            raise ValueError(f"model.merge={list(self.model.merge)} would make one token of several moments")
        if self.model.grid is not None and len(self.model.grid) not in (3, 4):
            raise ValueError(f"codes of video have moments, rows and columns, not model.grid={list(self.model.grid)}")
        return self
