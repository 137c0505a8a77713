"""Owns the keys that recipes of masked tokens share: how they are decoded, and how a `MaskGit` is trained. Free of
torch, so that help is quick."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from quintet.config import OptimConfig, PhaseOptimConfig, RunConfig, SampleConfig, Section
from quintet.config.maskgit import MaskGitConfig


class MaskedSampleConfig(SampleConfig):
    """How masked tokens are filled in, whatever the model."""

    guidance: float = Field(1.0, ge=0, description="Classifier-free guidance; 1: none.")
    guidance_schedule: Literal["constant", "linear", "cosine", "falling"] = Field(
        "constant", description="Course of the guidance over the steps."
    )
    temperature: float = Field(1.0, ge=0, description="Of drawing a token; 0: the likeliest.")
    anneal: Literal["constant", "linear"] = Field(
        "constant", description="Course of the temperature over the steps; linear falls to 0."
    )
    choice_noise: float = Field(4.5, ge=0, description="Noise in choosing which tokens stay; falls to 0.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Draw from the likeliest codes of this total probability."
    )


class MaskGitSampleConfig(MaskedSampleConfig):
    steps: int = Field(18, ge=1, le=1000, description="Decoding steps.")
    guidance: float = Field(3.0, ge=0, description="Classifier-free guidance; 1: none.")
    guidance_schedule: Literal["constant", "linear", "cosine", "falling"] = Field(
        "linear", description="Course of the guidance over the steps."
    )
    top_k: int | None = Field(None, ge=1, description="Draw from so many likeliest codes.")


class MaskGitLossConfig(Section):
    """What it is trained for."""

    schedule: Literal["cosine", "linear"] = Field("cosine", description="How the share of masked tokens is drawn.")
    drop_text: float = Field(
        0.1, ge=0, lt=1, description="Share of texts dropped, so that guidance has something to lead away from."
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Share of the target spread over all codes.")
    alike: float = Field(
        0.0,
        ge=0,
        description="Share targets among codes that look alike, so far: in median squared distances between nearest "
        "codes, instead of loss.label_smoothing; 0: each code is right alone.",
    )
    critic: bool = Field(False, description="Train a token critic beside it, which decides what is masked again.")
    only: Literal["generator", "critic"] | None = Field(
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
        if self.loss.only == "critic" and not (self.loss.critic or self.model.self_critic):
            raise ValueError("loss.only=critic needs a critic: loss.critic=true or model.self_critic=true")
        if self.loss.alike and self.loss.label_smoothing:
            raise ValueError("loss.alike shares targets out already: set loss.label_smoothing=0")
        return self
