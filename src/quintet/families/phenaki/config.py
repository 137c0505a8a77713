"""The keys of the recipe `phenaki`, and the options of its pipeline. Free of torch, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import NegativePromptOptions, VideoDataConfig
from quintet.config.masked import MaskGitLossConfig, MaskGitRunConfig, MaskGitSampleConfig
from quintet.config.presets import BASE_GENERATOR, BASE_TEXT, DEBUG_GENERATOR, DEBUG_TEXT, SMALL_GENERATOR, preset


class PhenakiDataConfig(VideoDataConfig):
    variants: int = Field(
        1, ge=1, le=1000, description="Variants of each clip in the code cache (other beginnings, flips, crops)."
    )
    allow_missing_captions: bool = Field(
        False, description="Train a text model although clips without caption are there."
    )


class PhenakiLossConfig(MaskGitLossConfig):
    frame_autoregressive: bool = Field(
        False,
        description="Predict latent frames one after the other, each from all earlier ones, instead of all frames of "
        "a clip at once as in the paper.",
    )
    first_frame_prob: float = Field(
        0.5,
        ge=0,
        le=1,
        description="In the order of moments: share of clips whose first one is guessed, for which the text is all "
        "there is to go by; the later ones share the rest.",
    )
    continuation_prob: float = Field(
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
    FROZEN_KEYS = ("tokenizer",)
    PRESETS: ClassVar = {
        "debug": preset(DEBUG_GENERATOR, DEBUG_TEXT, model={"rotary": True}, data={"frames": 5}, sample={"steps": 4}),
        # Two CPU cores, within an hour.
        "small": preset(
            SMALL_GENERATOR,
            model={"rotary": True, "text": "words", "text_dim": 96},
            # The picture is the hard part, and it is the first moment.
            loss={
                "frame_autoregressive": True,
                "codebook_smoothing": 0.5,
                "label_smoothing": 0.0,
                "first_frame_prob": 0.88,
            },
            train={"steps": 14_000},
            sample={"steps": 18, "later_steps": 6, "overlap": 5, "temperature": 0.4, "choice_temperature": 4.5}
            | {"num": 8, "every": 2000},
            eval={"num_generated": 200},
        ),
        "base": preset(BASE_GENERATOR, BASE_TEXT, model={"rotary": True}),
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
        if self.model.low_res_grid is not None:
            raise ValueError(
                "model.low_res_grid is for pictures that are drawn larger; there is no such model of videos"
            )
        if self.model.code_patch_size is not None and self.model.code_patch_size[0] != 1:
            raise ValueError(
                f"model.code_patch_size={list(self.model.code_patch_size)} would make one token of several moments"
            )
        if self.model.grid is not None and len(self.model.grid) not in (3, 4):
            raise ValueError(f"codes of video have moments, rows and columns, not model.grid={list(self.model.grid)}")
        return self
