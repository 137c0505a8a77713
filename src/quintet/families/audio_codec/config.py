"""The keys of the recipe `audio-codec`. Imports no torch, so that help is quick."""

from __future__ import annotations

import json
import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import AudioDataConfig, EvalConfig, RunConfig, Section
from quintet.config.adversarial import AdversarialLossConfig, AdversarialOptimConfig
from quintet.config.presets import BASE, DEBUG, SMALL, discriminator, preset

LONGEST_HOP = 2**16
Stride = Annotated[int, Field(ge=1, le=64)]
Window = Annotated[int, Field(ge=16, le=2**16)]
Period = Annotated[int, Field(ge=1, le=256)]


class AudioCodecModelConfig(Section):
    """The tokenizer; the keyword arguments of `AudioCodec`."""

    sample_rate: int = Field(16_000, ge=1000, le=384_000, description="Samples a second; files are resampled to it.")
    transform: int | None = Field(
        None,
        ge=2,
        le=4096,
        description="Samples of a frame that a transform makes to how loud each frequency is, and its phase; layers "
        "learn beside it: quick. None: layers see the samples.",
    )
    strides: tuple[Stride, ...] = Field(
        (8, 5, 4, 2),
        max_length=12,
        description="By how much each layer of the encoder shortens; their product is the samples of a frame. Large "
        "ones first are quick. Of a transform there are none.",
    )
    dim: int = Field(32, ge=4, le=4096, description="Width at full rate; doubles with every stride, to 8x at most.")
    num_residual_units: int = Field(
        3, ge=0, le=8, description="Residual units after each stride, dilated by 1, 3, 9, …; the decoder has as many."
    )
    latent_dim: int | None = Field(
        None, ge=2, le=4096, description="Width of the vectors that are quantized; none: 64, or as a transform has it."
    )
    activation: Literal["snake", "elu"] = Field(
        "snake", description="snake: x + sin(ax)^2 / a, for what is periodic; elu: quicker."
    )
    causal: bool = Field(False, description="Frames know nothing of later ones, so that streams need not wait.")
    quantizer: Literal["vq", "lfq", "fsq"] = Field(
        "vq", description="Vector, lookup-free or finite scalar quantization, residual over the levels."
    )
    codebook_size: int = Field(
        1024, ge=2, le=2**24, description="Codes of a level; lfq needs a power of two, fsq a size it knows."
    )
    num_quantizers: int = Field(8, ge=1, le=64, description="Codes of a frame, each of what the ones before left over.")
    num_loudness_quantizers: int | None = Field(
        None,
        ge=1,
        le=63,
        description="Of the levels behind a transform so many, the first, say how loud frequencies are; none: a sixth.",
    )
    transformers_config: str | None = Field(
        None,
        description="Configuration of a codec of transformers (JSON) that stands in for all of this, as its folder has "
        "it; there is nothing to train then.",
    )

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return (self.transform or 1) * math.prod(self.strides)

    @property
    def width(self) -> int:
        """Numbers of a vector that is quantized."""
        return 2 * self.transform if self.transform else self.latent_dim or 64

    @property
    def loudness_quantizers(self) -> int:
        """The first levels behind a transform."""
        return self.num_loudness_quantizers or max(1, self.num_quantizers // 6)

    @field_validator("transformers_config")
    @classmethod
    def _is_a_configuration(cls, text: str | None) -> str | None:
        try:
            known = text is None or isinstance(json.loads(text)["model_type"], str)
        except (ValueError, KeyError, TypeError, RecursionError):
            known = False
        if not known:
            raise ValueError("this is not the configuration of a model of transformers; name its folder instead")
        return text

    def _fits_a_transform(self) -> None:
        if self.strides or self.latent_dim is not None:
            raise ValueError(
                "model.transform makes the frames and their vectors: set model.strides=[] and no model.latent_dim"
            )
        if self.loudness_quantizers >= self.num_quantizers:
            raise ValueError(
                f"model.num_loudness_quantizers={self.loudness_quantizers} of model.num_quantizers={self.num_quantizers} leave none for phases"
            )

    @model_validator(mode="after")
    def _frames_are_short(self) -> AudioCodecModelConfig:
        if self.transform is None and self.num_loudness_quantizers is not None:
            raise ValueError("model.num_loudness_quantizers are those behind a transform: set model.transform")
        if self.transform is not None:
            self._fits_a_transform()
        if not 1 < self.hop <= LONGEST_HOP:
            raise ValueError(
                f"model.strides={list(self.strides)} and model.transform={self.transform} make frames of {self.hop} "
                f"samples; 2 to {LONGEST_HOP} can be"
            )
        return self


class AudioCodecLossConfig(AdversarialLossConfig):
    """What the codec is trained for. Each aim pulls at a clip as strongly as its weight says, however far it is."""

    waveform: float = Field(
        1.0, ge=0, description="Weight of the mean square difference of samples, as a share of the clip's own power."
    )
    mel: float = Field(0.5, ge=0, description="Weight of the mean absolute difference of log-mel spectrograms.")
    mel_windows: tuple[Window, ...] = Field(
        (2048, 1024, 512, 256, 128), min_length=1, max_length=16, description="Samples of their windows, one each."
    )
    quantizer: float = Field(1.0, ge=0, description="Weight of the quantizer's own loss: commitment, or entropy.")
    quantizer_dropout: float = Field(
        0.5, ge=0, le=1, description="Share of the training clips of which only the first few levels, drawn, are used."
    )
    discriminator_dim: int = Field(16, ge=4, le=1024, description="Width of the discriminators' first layers.")
    stft_windows: tuple[Window, ...] = Field(
        (1024, 512, 256), max_length=16, description="One discriminator of the spectrum for each; samples of a window."
    )
    periods: tuple[Period, ...] = Field(
        (2, 3, 5, 7, 11),
        max_length=16,
        description="One discriminator of the wave for each: it sees every n-th sample.",
    )
    gan_loss: Literal["hinge", "least-squares"] = Field("hinge", description="The adversarial loss.")
    adversarial: float = Field(0.1, ge=0, description="Weight of the adversarial loss.")
    feature_matching: float = Field(
        0.5, ge=0, description="Weight of feature matching: how far the discriminators' features are apart, relatively."
    )

    @model_validator(mode="after")
    def _someone_judges(self) -> AudioCodecLossConfig:
        if self.discriminator and not self.stft_windows and not self.periods:
            raise ValueError("loss.stft_windows and loss.periods are both empty; for none set loss.discriminator=false")
        return self


class AudioCodecEvalConfig(EvalConfig):
    """Validation."""

    seconds: float = Field(30.0, gt=0, description="Of each clip so much is measured and shown, from its start.")


class AudioCodecConfig(RunConfig):
    TRANSFORMERS = ("encodec", "dac", "mimi")
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG,
            discriminator(10, ramp=5, dim=4),
            model={"dim": 8, "num_residual_units": 1, "latent_dim": 16, "codebook_size": 256, "num_quantizers": 4},
            data={"seconds": 0.5},
            loss={"stft_windows": [256], "periods": [3]},
            sample={"num": 4},
        ),
        # Two CPU cores, within half an hour: 25 frames a second of 24 codes, 6 kbit/s.
        "small": preset(
            SMALL,
            discriminator(260, ramp=30, dim=8),
            model={"transform": 640, "strides": [], "dim": 192, "num_quantizers": 24},
            data={"seconds": 1.0},
            train={"steps": 300},
            optim={"lr": 5e-5, "warmup_steps": 20, "max_grad_norm": 1.0},
            loss={"mel": 2.0, "stft_windows": [512], "periods": [3]},
            eval={"every": 100},
            sample={"every": 250, "num": 8},
            checkpoint={"every": 100},
        ),
        "base": preset(
            BASE,
            discriminator(10_000, ramp=5000, dim=32),
            model={"strides": [2, 4, 5, 8], "dim": 64, "latent_dim": 128},
            data={"seconds": 2.0},
            train={"steps": 400_000},
            optim={"lr": 1e-4, "betas": [0.8, 0.99], "warmup_steps": 1000, "max_grad_norm": 1.0},
            loss={"stft_windows": [2048, 1024, 512, 256]},
        ),
    }

    recipe: Literal["audio-codec"] = Field("audio-codec", description="What is trained.")
    data: AudioDataConfig = Field(default_factory=AudioDataConfig, description="The files.")
    model: AudioCodecModelConfig = Field(default_factory=AudioCodecModelConfig, description="The tokenizer.")
    loss: AudioCodecLossConfig = Field(default_factory=AudioCodecLossConfig, description="What it is trained for.")
    optim: AdversarialOptimConfig = Field(default_factory=AdversarialOptimConfig, description="Optimizer and schedule.")
    eval: AudioCodecEvalConfig = Field(default_factory=AudioCodecEvalConfig, description="Validation.")
