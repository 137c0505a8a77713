"""Owns the keys of the recipe `muse`. Free of torch, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import OptimConfig, PhaseOptimConfig, PictureDataConfig, RunConfig, SampleConfig, Section
from quintet.nn.maskgit_config import MaskGitConfig


class MuseDataConfig(PictureDataConfig):
    flip: bool = Field(
        False, description="Mirror half of the pictures; captions that name sides would contradict them."
    )
    variants: int = Field(
        1, ge=1, le=1000, description="Augmented variants of each picture in the code cache (flips, crops)."
    )
    cache: str | None = Field(None, description="Folder of the code cache; none: the user's own cache folder.")
    empty_captions: bool = Field(False, description="Train a text model although pictures without caption are there.")


class MuseLossConfig(Section):
    """What it is trained for."""

    schedule: Literal["cosine", "linear"] = Field("cosine", description="How the share of masked tokens is drawn.")
    drop_text: float = Field(
        0.1, ge=0, lt=1, description="Share of texts dropped, so that guidance has something to lead away from."
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Share of the target spread over all codes.")
    critic: bool = Field(False, description="Train a token critic beside it, which decides what is masked again.")
    only: Literal["generator", "critic"] | None = Field(
        None, description="Train only this of the two; the critic alone needs a trained generator (--init RUN)."
    )


class MuseSampleConfig(SampleConfig):
    steps: int = Field(18, ge=1, le=1000, description="Decoding steps.")
    guidance: float = Field(3.0, ge=0, description="Classifier-free guidance; 1: none.")
    guidance_schedule: Literal["constant", "linear", "cosine"] = Field(
        "linear", description="How guidance grows over the steps."
    )
    temperature: float = Field(1.0, ge=0, description="Of drawing a token; 0: the likeliest.")
    anneal: Literal["constant", "linear"] = Field(
        "constant", description="Course of the temperature; linear falls to 0."
    )
    choice_noise: float = Field(4.5, ge=0, description="Noise in choosing which tokens stay; falls to 0.")
    top_k: int | None = Field(None, ge=1, description="Draw from so many likeliest codes.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Draw from the likeliest codes of this total probability."
    )


class MuseOptimConfig(OptimConfig):
    critic: PhaseOptimConfig = Field(default_factory=PhaseOptimConfig, description="The critic's own optimizer.")


class MuseConfig(RunConfig):
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
    model: MaskGitConfig = Field(default_factory=MaskGitConfig, description="The masked transformer.")
    loss: MuseLossConfig = Field(default_factory=MuseLossConfig, description="What it is trained for.")
    optim: MuseOptimConfig = Field(default_factory=MuseOptimConfig, description="Optimizer and schedule.")
    sample: MuseSampleConfig = Field(default_factory=MuseSampleConfig, description="Decoding, here and while training.")

    @model_validator(mode="after")
    def _critics_agree(self) -> MuseConfig:
        if self.loss.critic and self.model.self_critic:
            raise ValueError("loss.critic=true and model.self_critic=true are two critics; choose one")
        if self.loss.only == "critic":
            if not (self.loss.critic or self.model.self_critic):
                raise ValueError("loss.only=critic needs a critic: loss.critic=true or model.self_critic=true")
            if self.init is None:
                raise ValueError("loss.only=critic needs a trained generator to judge: --init RUN")
        return self
