"""The keys of the recipe `soundstorm`. Imports no torch, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import AudioDataConfig, GenerateOptions, RunConfig, Section
from quintet.config.masked import MaskedSampleConfig
from quintet.config.presets import BASE_GENERATOR, DEBUG_GENERATOR, SMALL_GENERATOR, preset

Steps = Annotated[int, Field(ge=1, le=1000)]


class SoundStormModelConfig(Section):
    """A conformer over the frames of a codec; the keyword arguments of `SoundStorm`."""

    num_codes: int | None = Field(None, gt=1, description="Vocabulary of a level; none: that of the tokenizer.")
    num_quantizers: int | None = Field(
        None, ge=1, le=64, description="Codes of a frame that are made at most, the tokenizer's first; none: all."
    )
    frame_rate: float | None = Field(None, gt=0, description="Frames a second; none: those of the tokenizer.")
    max_frames: int | None = Field(
        None, ge=1, le=2**16, description="Most frames of a clip, prompt and all; none: those of data.seconds."
    )
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Width of the conformer.")
    depth: int = Field(6, ge=1, le=256, description="Blocks of the conformer.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    head_dim: int = Field(64, ge=8, multiple_of=2, description="Width of a head.")
    ff_mult: float = Field(4.0, gt=0, description="Weights of a feed-forward layer, in squares of the width / 2.")
    conv_kernel_size: int = Field(5, ge=1, le=255, description="Frames that a convolution sees; odd.")
    conv_expansion: int = Field(1, ge=1, le=8, description="Width of the convolution, in widths of the conformer.")
    position_embedding: bool = Field(
        True, description="Tell frames where they are in a clip; without, they know only how far they are apart."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch of a block.")
    semantic_codes: int | None = Field(
        None, gt=1, description="Vocabulary of the semantic tokens it is told; none: it is told none."
    )
    semantic_rate: float | None = Field(None, gt=0, description="Semantic tokens a second; none: it is told none.")
    condition_dim: int | None = Field(
        None, ge=1, description="Width of the one vector it is told of a whole clip, such as MuLaN's; none: no vector."
    )
    condition_form: Literal["vector", "quantized"] = Field(
        "vector", description="Condition on MuLaN's continuous embedding or on its quantized embedding."
    )
    self_conditioning: bool = Field(False, description="Show the model what it made of the step before.")
    self_critic: bool = Field(False, description="A head that scores codes, on the generator itself.")

    @model_validator(mode="after")
    def _fits(self) -> SoundStormModelConfig:
        if self.conv_kernel_size % 2 == 0:
            raise ValueError(
                f"model.conv_kernel_size={self.conv_kernel_size} has no frame in its middle; give an odd number"
            )
        if (self.semantic_codes is None) != (self.semantic_rate is None):
            raise ValueError("model.semantic_codes and model.semantic_rate are given both or not at all")
        return self

    @property
    def conditioned(self) -> bool:
        """Whether it is told anything that could be left out, which guidance needs."""
        return self.semantic_codes is not None or self.condition_dim is not None


class SoundStormDataConfig(AudioDataConfig):
    """Clips, from their start: they are encoded once, so what is used of them is the same in every epoch."""

    seconds: float = Field(4.0, gt=0, description="Of each clip so much is used, from its start.")
    semantic_tokens: str | None = Field(
        None,
        description="Folder of the semantic tokens of these files, as `quintet encode DATA --layer N` writes it; none: "
        "none are told.",
    )


class SoundStormLossConfig(Section):
    """What it is trained for."""

    mask_schedule: Literal["cosine", "linear"] = Field("cosine", description="How the share of masked codes is drawn.")
    mask_span: int = Field(1, ge=1, le=64, description="Frames that are masked together.")
    coarse_bias: float = Field(
        1.0, ge=1, le=16, description="1: all levels as often; 2: the lower of two drawn ones, and so on."
    )
    cond_drop_prob: float = Field(
        0.1, ge=0, lt=1, description="Share of clips told nothing, so that guidance has something to lead away from."
    )
    caption_cond_prob: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of captioned clips that are told as their caption's vector instead of their sound's.",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Share of the target spread over all codes.")
    train_only: Literal["generator", "critic"] | None = Field(
        None, description="Train only this of the two; the critic alone needs a trained generator (--init RUN)."
    )


class SoundStormSampleConfig(MaskedSampleConfig):
    """The courses of guidance and temperature are those over the steps of a level."""

    steps: tuple[Steps, ...] = Field(
        (16, 1), min_length=1, max_length=64, description="Decoding steps of each level; the last number holds on."
    )
    greedy_last_step: bool = Field(True, description="Take the likeliest codes at the last step of a level.")
    top_k: int | float | None = Field(
        None, gt=0, description="Draw from so many likeliest codes, or, below 1, from this share of them."
    )
    best_of: int = Field(
        1, ge=1, le=1000, description="Make so many of each, and keep the one nearest to its text (needs --condition)."
    )


class SoundStormOptions(GenerateOptions):
    prompt: Path | None = Field(None, description="An audio file to go on from.")
    seconds: float | None = Field(
        None,
        allow_inf_nan=True,  # the pipeline refuses them as it refuses other lengths
        description="Length of a clip, prompt included; if not given, the model's longest.",
    )


class SoundStormConfig(RunConfig):
    OPTIONS = SoundStormOptions
    FROZEN_KEYS = ("tokenizer", "condition")
    PRESETS: ClassVar = {
        "debug": preset(DEBUG_GENERATOR, model={"head_dim": 16}, data={"seconds": 1.0}, sample={"steps": [4, 1]}),
        # Two CPU cores, within an hour.
        "small": preset(
            SMALL_GENERATOR,
            model={"num_quantizers": 4, "head_dim": 32},
            loss={"coarse_bias": 2.0},
            train={"steps": 3200},
            sample={"steps": [16, 4, 2, 1], "guidance_scale": 2.0, "temperature": 0.7, "num": 8},
            eval={"num_generated": 64},
        ),
        "base": preset(BASE_GENERATOR, model={"depth": 12}, data={"seconds": 30.0}, optim={"lr": 2e-4}),
    }

    recipe: Literal["soundstorm"] = Field("soundstorm", description="What is trained.")
    tokenizer: str | None = Field(None, description="The trained codec: RUN, RUN@step, or an exported folder.")
    tokenizer_hash: str | None = Field(None, description="Of its weights; none: that of the codec, from then on.")
    condition: str | None = Field(
        None, description="The trained mulan whose vectors tell it what to make; none: it is told nothing by vectors."
    )
    condition_hash: str | None = Field(None, description="Of its weights; none: that of the mulan, from then on.")
    data: SoundStormDataConfig = Field(default_factory=SoundStormDataConfig, description="The files.")
    model: SoundStormModelConfig = Field(default_factory=SoundStormModelConfig, description="The conformer.")
    loss: SoundStormLossConfig = Field(default_factory=SoundStormLossConfig, description="What it is trained for.")
    sample: SoundStormSampleConfig = Field(
        default_factory=SoundStormSampleConfig, description="Decoding, here and while training."
    )

    @model_validator(mode="after")
    def _critic_exists(self) -> SoundStormConfig:
        if self.loss.train_only == "critic" and not self.model.self_critic:
            raise ValueError("loss.train_only=critic needs a critic: model.self_critic=true")
        return self
