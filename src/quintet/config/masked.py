"""Owns the keys that recipes of masked tokens share: how they are decoded, and how a `MaskGit` is trained. Free of
torch, so that help is quick."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from quintet.config import OptimConfig, PhaseOptimConfig, RunConfig, SampleConfig, Section
from quintet.config.text import TextConfig


class MaskGitConfig(TextConfig):
    """A masked transformer over a grid of tokens."""

    grid: tuple[int, ...] | None = Field(
        None, description="Places of codes along each axis; none: those of the tokenizer."
    )
    num_codes: int | None = Field(None, gt=1, description="Vocabulary; none: that of the tokenizer.")
    low_res_grid: tuple[int, ...] | None = Field(
        None,
        description="Grid of the low-resolution codes that a super-resolution model is given; "
        "none: this is no super-resolution model.",
    )
    low_res_num_codes: int | None = Field(
        None,
        gt=1,
        description="Vocabulary of the low-resolution codes that a super-resolution model is given; "
        "none: this is no super-resolution model.",
    )
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Width of the transformer.")
    depth: int = Field(6, ge=1, le=256, description="Blocks of the transformer.")
    heads: int = Field(8, ge=1, description="Attention heads, among which the width is shared out.")
    code_patch_size: tuple[int, ...] | None = Field(
        None,
        description="Neighbouring codes along each axis of the grid that are one token to the transformer, such as "
        "[1,2,2] of video: a fraction of the work; none: each code is one.",
    )
    rotary: bool = Field(False, description="Let attention see distances too, by turning queries and keys.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch of a block.")
    self_conditioning: bool = Field(False, description="Show the model its own prediction of the step before.")
    self_critic: bool = Field(False, description="A head that scores tokens, on the generator itself.")

    @field_validator("low_res_grid")
    @classmethod
    def _possible_grid(cls, grid: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if grid is not None and (len(grid) not in (2, 3) or min(grid) < 1):
            raise ValueError("rows and columns of codes are needed, and their levels if they have any")
        return grid

    @model_validator(mode="after")
    def _fits(self) -> MaskGitConfig:
        if self.dim % self.heads:
            raise ValueError(f"model.heads={self.heads} does not divide a width of {self.dim}")
        if (self.low_res_grid is None) != (self.low_res_num_codes is None):
            raise ValueError("model.low_res_grid and model.low_res_num_codes are given both or not at all")
        if self.code_patch_size is not None and self.grid is not None:
            fits = len(self.code_patch_size) == len(self.grid) and min(self.code_patch_size) > 0
            if not fits or any(size % step for size, step in zip(self.grid, self.code_patch_size, strict=True)):
                raise ValueError(
                    f"model.code_patch_size={list(self.code_patch_size)} does not divide a grid of {list(self.grid)} codes; null for none"
                )
        if self.low_res_grid is not None and self.grid is not None and len(self.grid) not in (2, 3):
            raise ValueError(f"a super-resolution model has rows and columns of codes, not model.grid={self.grid}")
        return self


class MaskedSampleConfig(SampleConfig):
    """How masked tokens are filled in, whatever the model."""

    guidance_scale: float = Field(1.0, ge=0, description="Classifier-free guidance; 1: none.")
    guidance_schedule: Literal["constant", "linear", "cosine", "falling"] = Field(
        "constant", description="Course of the guidance over the steps."
    )
    temperature: float = Field(1.0, ge=0, description="Of drawing a token; 0: the likeliest.")
    temperature_schedule: Literal["constant", "linear"] = Field(
        "constant", description="Course of the temperature over the steps; linear falls to 0."
    )
    choice_temperature: float = Field(4.5, ge=0, description="Noise in choosing which tokens stay; falls to 0.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Draw from the likeliest codes of this total probability."
    )


class MaskGitSampleConfig(MaskedSampleConfig):
    steps: int = Field(18, ge=1, le=1000, description="Decoding steps.")
    guidance_scale: float = Field(3.0, ge=0, description="Classifier-free guidance; 1: none.")
    guidance_schedule: Literal["constant", "linear", "cosine", "falling"] = Field(
        "linear", description="Course of the guidance over the steps."
    )
    top_k: int | None = Field(None, ge=1, description="Draw from so many likeliest codes.")


class MaskGitLossConfig(Section):
    """What it is trained for."""

    mask_schedule: Literal["cosine", "linear"] = Field("cosine", description="How the share of masked tokens is drawn.")
    cond_drop_prob: float = Field(
        0.1, ge=0, lt=1, description="Share of texts dropped, so that guidance has something to lead away from."
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Share of the target spread over all codes.")
    codebook_smoothing: float = Field(
        0.0,
        ge=0,
        description="Share targets among codes that look alike, so far: in median squared distances between nearest "
        "codes, instead of loss.label_smoothing; 0: each code is right alone.",
    )
    critic: bool = Field(False, description="Train a token critic beside it, which decides what is masked again.")
    train_only: Literal["generator", "critic"] | None = Field(
        None, description="Train only this of the two; the critic alone needs a trained generator (--init RUN)."
    )


class MaskGitOptimConfig(OptimConfig):
    critic: PhaseOptimConfig = Field(default_factory=PhaseOptimConfig, description="The critic's own optimizer.")


class MaskGitRunConfig(RunConfig):
    """A run that trains a `MaskGit` and perhaps its critic."""

    model: MaskGitConfig = Field(default_factory=MaskGitConfig, description="The masked transformer.")
    loss: MaskGitLossConfig = Field(default_factory=MaskGitLossConfig, description="What it is trained for.")
    optim: MaskGitOptimConfig = Field(default_factory=MaskGitOptimConfig, description="Optimizer and schedule.")
    sample: MaskGitSampleConfig = Field(
        default_factory=MaskGitSampleConfig, description="Decoding, here and while training."
    )

    @model_validator(mode="after")
    def _critics_agree(self) -> Self:
        if self.loss.critic and self.model.self_critic:
            raise ValueError("loss.critic=true and model.self_critic=true are two critics; choose one")
        if self.loss.train_only == "critic" and not (self.loss.critic or self.model.self_critic):
            raise ValueError("loss.train_only=critic needs a critic: loss.critic=true or model.self_critic=true")
        if self.loss.codebook_smoothing and self.loss.label_smoothing:
            raise ValueError("loss.codebook_smoothing shares targets out already: set loss.label_smoothing=0")
        return self
