"""Configuration keys of the recipe `soundstorm` and options of its pipeline.

Does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import AudioDataConfig, EncodingConfig, NegativePromptOptions, RunConfig
from quintet.config.masked import CorruptionConfig, MaskedSampleConfig
from quintet.config.presets import (
    BASE_GENERATOR,
    BASE_TEXT,
    DEBUG_GENERATOR,
    DEBUG_TEXT,
    FEW_GENERATOR,
    SMALL_GENERATOR,
    preset,
)
from quintet.config.text import TextConfig, known_text

Steps = Annotated[int, Field(ge=1, le=1000)]


class SoundStormModelConfig(TextConfig):
    """A conformer over the frames of a codec; its keys are the keyword arguments of `SoundStorm`."""

    text: str = Field(
        "none",
        description="Text encoder that the conformer attends to, word by word: bytes or words (trained with the model; "
        "words learn faster, bytes fit any text), classes (an embedding per class), hf:PATH_OR_NAME (a frozen encoder "
        "of transformers), vectors (embeddings from a Python dataset), none, or auto (words if the clips have "
        "captions and there is no --condition, otherwise none).",
    )
    known_words: tuple[str, ...] | None = Field(
        None,
        description="Words of the captions, recorded when a run with model.text=words starts, so that sampling can "
        "name words that the model has never seen; null: not recorded, or too many.",
    )

    num_codes: int | None = Field(
        None, gt=1, description="Number of codes (vocabulary size); null takes it from the tokenizer."
    )
    num_quantizers: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Number of residual quantizers to generate, the first ones of the tokenizer; null: all of them.",
    )
    frame_rate: float | None = Field(
        None, gt=0, description="Frames per second; null takes the frame rate of the tokenizer."
    )
    max_frames: int | None = Field(
        None,
        ge=1,
        le=2**16,
        description="Maximum number of frames of a clip, including a prompt; null takes it from data.seconds.",
    )
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Hidden dimension of the conformer.")
    depth: int = Field(6, ge=1, le=256, description="Number of conformer blocks.")
    heads: int = Field(4, ge=1, description="Number of attention heads.")
    head_dim: int = Field(64, ge=8, multiple_of=2, description="Dimension of each attention head.")
    ff_mult: float = Field(4.0, gt=0, description="Feed-forward expansion factor.")
    conv_kernel_size: int = Field(
        5, ge=1, le=255, description="Kernel size of the convolutions, in frames; must be odd."
    )
    conv_expansion: int = Field(1, ge=1, le=8, description="Channel expansion factor of the convolutions.")
    position_embedding: bool = Field(
        True, description="Add learned absolute position embeddings; false uses rotary (relative) positions alone."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability of the output of each residual branch.")
    semantic_codes: int | None = Field(
        None, gt=1, description="Vocabulary size of the semantic tokens; null: no conditioning on semantic tokens."
    )
    semantic_rate: float | None = Field(
        None, gt=0, description="Semantic tokens per second; null: no conditioning on semantic tokens."
    )
    condition_dim: int | None = Field(
        None,
        ge=1,
        description="Dimension of the clip embedding that conditions the model, such as MuLaN's; null: no embedding.",
    )
    condition_form: Literal["vector", "quantized"] = Field(
        "vector", description="Condition on MuLaN's continuous embedding or on its quantized embedding."
    )
    self_conditioning: bool = Field(
        False, description="Self-conditioning: feed the prediction of the previous step back as input."
    )
    self_critic: bool = Field(
        False, description="Self-critic: add a head to the generator that scores tokens for re-masking."
    )

    @field_validator("text")
    @classmethod
    def _known_text(cls, text: str) -> str:
        return text if text == "auto" else known_text(text)

    @model_validator(mode="after")
    def _fits(self) -> SoundStormModelConfig:
        if self.conv_kernel_size % 2 == 0:
            raise ValueError(f"model.conv_kernel_size={self.conv_kernel_size} must be odd")
        if (self.semantic_codes is None) != (self.semantic_rate is None):
            raise ValueError("set both model.semantic_codes and model.semantic_rate, or neither")
        return self

    @property
    def conditioned(self) -> bool:
        """Whether the model is conditional, which classifier-free guidance needs."""
        return self.semantic_codes is not None or self.condition_dim is not None or self.text != "none"


class SoundStormDataConfig(EncodingConfig, AudioDataConfig):
    """Windows of audio clips: they are encoded once, so every epoch uses the same parts of each."""

    seconds: float = Field(
        4.0, gt=0, description="Length of a window of a clip, in seconds; shorter clips are used in full."
    )
    windows: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        1,
        description="Number of windows of each clip: 1 uses its start, N up to N evenly spaced windows, all as many as "
        "it takes to cover the clip.",
    )
    allow_missing_captions: bool = Field(
        False, description="Train a model with model.text even if some clips have no caption."
    )
    semantic_tokens: str | None = Field(
        None,
        description="Folder of the semantic tokens of the files, written by `quintet encode RUN DATA --layer N`; "
        "null: no conditioning on semantic tokens.",
    )


class SoundStormLossConfig(CorruptionConfig):
    """Losses of masked code prediction."""

    mask_schedule: Literal["cosine", "linear"] = Field(
        "cosine", description="Schedule that the fraction of masked tokens is sampled from."
    )
    mask_span: int = Field(1, ge=1, le=64, description="Number of consecutive frames that are masked together.")
    coarse_bias: float = Field(
        1.0,
        ge=1,
        le=16,
        description="Bias towards coarse quantizers: N trains the coarsest of N random ones; 1 trains all equally.",
    )
    cond_drop_prob: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Probability of dropping the conditioning of a training clip, for classifier-free guidance.",
    )
    caption_cond_prob: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of captioned clips conditioned on the embedding of their caption instead of their audio "
        "(--condition).",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Label smoothing: fraction of the target probability spread over all codes."
    )
    critic_weight: float = Field(
        1.0, ge=0, description="Weight of the loss of the critic in the sum of both losses (model.self_critic)."
    )
    train_only: Literal["generator", "critic"] | None = Field(
        None,
        description="Train only the generator or only the critic (which needs --init RUN); null trains both.",
    )


class SoundStormSampleConfig(MaskedSampleConfig):
    """Decoding. The schedules of guidance and temperature run over the steps of one quantizer level."""

    steps: tuple[Steps, ...] = Field(
        (16, 1),
        min_length=1,
        max_length=64,
        description="Number of decoding steps of each quantizer level; the last number holds for all further levels.",
    )
    greedy_last_step: bool = Field(
        True, description="Take the most likely codes at the last step of each quantizer level."
    )
    top_k: int | float | None = Field(
        None,
        gt=0,
        description="Sample from the K most likely codes, or, below 1, from this fraction; null uses all codes.",
    )
    overlap: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Fraction of a window that continues the window before, in clips that are longer than the maximum "
        "of the model.",
    )
    best_of: int = Field(
        1,
        ge=1,
        le=1000,
        description="Generate N candidates per clip and return the one most similar to its text (needs --condition).",
    )


class SoundStormOptions(NegativePromptOptions):
    prompt: Path | None = Field(None, description="Audio file to continue, or to keep parts of (--keep).")
    keep: str | None = Field(
        None,
        description="Seconds of --prompt that are kept, such as 0-2,5-7; everything else is generated.",
    )
    keep_every: int | None = Field(
        None, ge=2, description="Keep only every N-th frame of --prompt (or of the seconds in --keep)."
    )
    keep_quantizers: int | None = Field(
        None,
        ge=1,
        description="Keep only the codes of the first N quantizers of --prompt (or of the seconds in --keep).",
    )
    seconds: float | None = Field(
        None,
        allow_inf_nan=True,  # the pipeline refuses them with the message for other invalid lengths
        description="Length of a clip in seconds, including --prompt; longer clips than the maximum of the model are "
        "generated window by window. Default: that maximum; with --keep the length of --prompt.",
    )


class SoundStormConfig(RunConfig):
    OPTIONS = SoundStormOptions
    FROZEN_KEYS = ("tokenizer", "condition")
    RECORDED = ("known_words",)
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG_GENERATOR, DEBUG_TEXT, model={"head_dim": 16}, data={"seconds": 1.0}, sample={"steps": [4, 1]}
        ),
        # Trains on two CPU cores within an hour.
        "small": preset(
            SMALL_GENERATOR,
            model={"num_quantizers": 4, "head_dim": 32, "text": "auto", "text_dim": 96},
            loss={"coarse_bias": 2.0},
            train={"steps": 3200},
            sample={"steps": [16, 4, 2, 1], "guidance_scale": 2.0, "temperature": 0.7, "num": 8},
            eval={"num_generated": 64},
        ),
        "base": preset(BASE_GENERATOR, BASE_TEXT, model={"depth": 12}, data={"seconds": 30.0}, optim={"lr": 2e-4}),
        # The codes of a clip are always the same: a larger part of the conditioning is dropped instead.
        "few": preset(FEW_GENERATOR, loss={"cond_drop_prob": 0.2}),
    }

    recipe: Literal["soundstorm"] = Field("soundstorm", description="Recipe of the run.")
    tokenizer: str | None = Field(
        None,
        description="Trained audio codec: RUN, RUN@STEP, an exported folder, or the folder of a transformers codec.",
    )
    tokenizer_hash: str | None = Field(
        None, description="SHA-256 of the tokenizer's weights, recorded when the run starts."
    )
    condition: str | None = Field(
        None,
        description="Trained mulan whose embeddings condition the model: RUN, RUN@STEP or an exported folder; null: no "
        "conditioning on embeddings.",
    )
    condition_hash: str | None = Field(
        None, description="SHA-256 of the mulan's weights, recorded when the run starts."
    )
    data: SoundStormDataConfig = Field(default_factory=SoundStormDataConfig, description="Training data.")
    model: SoundStormModelConfig = Field(default_factory=SoundStormModelConfig, description="The conformer.")
    loss: SoundStormLossConfig = Field(default_factory=SoundStormLossConfig, description="Losses.")
    sample: SoundStormSampleConfig = Field(
        default_factory=SoundStormSampleConfig, description="Samples during training, and decoding."
    )

    @model_validator(mode="after")
    def _critic_exists(self) -> SoundStormConfig:
        if self.loss.train_only == "critic" and not self.model.self_critic:
            raise ValueError("loss.train_only=critic needs a critic: set model.self_critic=true")
        return self
