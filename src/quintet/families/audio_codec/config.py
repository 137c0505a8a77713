"""Configuration keys of the recipe `audio-codec`. Does not import torch, so that `--help` is fast."""

from __future__ import annotations

import json
import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import AudioDataConfig, EvalConfig, RunConfig, Section
from quintet.config.adversarial import AdversarialLossConfig, AdversarialOptimConfig
from quintet.config.presets import BASE, DEBUG, FEW, SMALL, discriminator, preset

MAX_HOP = 2**16
Stride = Annotated[int, Field(ge=1, le=64)]
Window = Annotated[int, Field(ge=16, le=2**16)]
Period = Annotated[int, Field(ge=1, le=256)]


class AudioCodecModelConfig(Section):
    """The codec; its keys are the keyword arguments of `AudioCodec`."""

    sample_rate: int = Field(16_000, ge=1000, le=384_000, description="Sampling rate in Hz; files are resampled to it.")
    channels: Literal[1, 2] = Field(
        1,
        description="Channels of the audio: 1 (mono; files are mixed) or 2 (stereo; mono files have two equal "
        "channels). In stereo, half of the quantizers encode the mean of the channels, and half their difference.",
    )
    transform: int | None = Field(
        None,
        ge=2,
        le=4096,
        description="Frame length, in samples, of a fixed lapped transform into magnitude and phase, with a learned "
        "residual branch; trains quickly. null: strided convolutions on the waveform.",
    )
    strides: tuple[Stride, ...] = Field(
        (8, 5, 4, 2),
        max_length=12,
        description="Downsampling factor of each encoder layer; their product is the hop length in samples. Large "
        "factors first are faster. Must be empty with model.transform.",
    )
    dim: int = Field(
        32, ge=4, le=4096, description="Channels at the full sampling rate; they double with every stride, up to 8x."
    )
    num_residual_units: int = Field(
        3, ge=0, le=8, description="Residual units per stride, with dilations 1, 3, 9, …, in encoder and decoder."
    )
    latent_dim: int | None = Field(
        None,
        ge=2,
        le=4096,
        description="Dimension of the latent vectors that are quantized; null: 64. Must be null with model.transform.",
    )
    activation: Literal["snake", "elu"] = Field(
        "snake", description="Activation: snake, x + sin(ax)^2 / a, for periodic signals; elu is faster."
    )
    causal: bool = Field(False, description="Use causal convolutions, so that streaming has no look-ahead.")
    quantizer: Literal["vq", "lfq", "fsq"] = Field(
        "vq", description="Quantizer: vq (vector), lfq (lookup-free) or fsq (finite scalar)."
    )
    codebook_size: int = Field(
        1024,
        ge=2,
        le=2**24,
        description="Number of codes of each quantizer; lfq needs a power of two, fsq one of its supported sizes.",
    )
    num_quantizers: int = Field(
        8,
        ge=1,
        le=64,
        description="Number of residual quantizers per frame; in stereo (model.channels=2) those of both signals, so "
        "it must be even.",
    )
    num_loudness_quantizers: int | None = Field(
        None,
        ge=1,
        le=63,
        description="Number of quantizers, the first ones, that encode magnitudes; the others encode phases. Needs "
        "model.transform. In stereo those of both signals, so it must be even. null: a sixth of them.",
    )
    transformers_config: str | None = Field(
        None,
        description="Configuration (JSON) of a pretrained codec of transformers, which replaces the model of the other "
        "keys and is not trained; recorded from its folder. null: no pretrained codec.",
    )

    @property
    def hop(self) -> int:
        """Hop length: samples per frame."""
        return (self.transform or 1) * math.prod(self.strides)

    @property
    def quantizer_dim(self) -> int:
        """Dimension of the latent vectors that are quantized, of one signal."""
        return 2 * self.transform if self.transform else self.latent_dim or 64

    @property
    def loudness_quantizers(self) -> int:
        """Number of quantizers that encode magnitudes, with `transform`."""
        each = max(1, self.num_quantizers // (6 * self.channels))
        return self.num_loudness_quantizers or each * self.channels

    @field_validator("transformers_config")
    @classmethod
    def _is_transformers_config(cls, text: str | None) -> str | None:
        try:
            is_valid = text is None or isinstance(json.loads(text)["model_type"], str)
        except (ValueError, KeyError, TypeError, RecursionError):
            is_valid = False
        if not is_valid:
            raise ValueError(
                "model.transformers_config is not the configuration of a transformers model; "
                "pass the folder of the model instead"
            )
        return text

    def _check_transform(self) -> None:
        if self.strides or self.latent_dim is not None:
            raise ValueError(
                "model.transform defines the frames and the latent dimension: set model.strides=[] and "
                "model.latent_dim=null"
            )
        if self.loudness_quantizers >= self.num_quantizers:
            raise ValueError(
                f"model.num_loudness_quantizers={self.loudness_quantizers} must be smaller than "
                f"model.num_quantizers={self.num_quantizers}: the other quantizers encode phases"
            )

    @model_validator(mode="after")
    def _check_channels(self) -> AudioCodecModelConfig:
        if self.channels == 1:
            return self
        if self.transformers_config is not None:
            raise ValueError("a codec of transformers is mono: leave model.channels at 1")
        for name in ("num_quantizers", "num_loudness_quantizers"):
            if (getattr(self, name) or 0) % 2:
                raise ValueError(
                    f"model.{name}={getattr(self, name)} must be even with model.channels=2: half of the quantizers "
                    "encode the difference of the channels"
                )
        return self

    @model_validator(mode="after")
    def _check_hop(self) -> AudioCodecModelConfig:
        if self.transform is None and self.num_loudness_quantizers is not None:
            raise ValueError("model.num_loudness_quantizers needs model.transform")
        if self.transform is not None:
            self._check_transform()
        if not 1 < self.hop <= MAX_HOP:
            raise ValueError(
                f"model.strides={list(self.strides)} and model.transform={self.transform} give a hop length of "
                f"{self.hop} samples; it must be between 2 and {MAX_HOP}"
            )
        return self


class AudioCodecLossConfig(AdversarialLossConfig):
    """Losses of the codec. The gradient of each loss is normalised per clip, so that the weights alone balance them."""

    waveform: float = Field(
        1.0, ge=0, description="Weight of the waveform loss: mean squared error relative to the power of the clip."
    )
    mel: float = Field(
        0.5, ge=0, description="Weight of the mel loss: mean absolute difference of log-mel spectrograms."
    )
    mel_windows: tuple[Window, ...] = Field(
        (2048, 1024, 512, 256, 128),
        min_length=1,
        max_length=16,
        description="STFT window lengths of the mel loss, in samples; one spectrogram each.",
    )
    quantizer: float = Field(1.0, ge=0, description="Weight of the quantizer loss (commitment or entropy).")
    quantizer_dropout: float = Field(
        0.5, ge=0, le=1, description="Fraction of training clips that use only a random number of the first quantizers."
    )
    discriminator_dim: int = Field(16, ge=4, le=1024, description="Channels of the first layer of each discriminator.")
    stft_windows: tuple[Window, ...] = Field(
        (1024, 512, 256),
        max_length=16,
        description="Window lengths of the STFT discriminators, in samples; one discriminator each.",
    )
    periods: tuple[Period, ...] = Field(
        (2, 3, 5, 7, 11),
        max_length=16,
        description="Periods of the multi-period discriminators, in samples; one discriminator each.",
    )
    gan_loss: Literal["hinge", "least-squares"] = Field("hinge", description="Adversarial loss function.")
    adversarial: float = Field(0.1, ge=0, description="Weight of the adversarial loss.")
    feature_matching: float = Field(
        0.5, ge=0, description="Weight of the feature-matching loss: relative L1 distance of discriminator features."
    )

    @model_validator(mode="after")
    def _check_discriminators(self) -> AudioCodecLossConfig:
        if self.discriminator and not self.stft_windows and not self.periods:
            raise ValueError(
                "loss.stft_windows and loss.periods are both empty; to train without discriminators set "
                "loss.discriminator=false"
            )
        return self


class AudioCodecEvalConfig(EvalConfig):
    """Validation."""

    seconds: float = Field(
        30.0, gt=0, description="Seconds of each clip, from its start, that are evaluated and shown."
    )


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
        # Trains on two CPU cores within half an hour: 25 frames per second with 24 codes each, 6 kbit/s.
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
        # Every step takes other windows of the clips, which is the augmentation of sound.
        "few": preset(
            FEW,
            {"loss.discriminator_start": 200, "loss.discriminator_ramp": 200},
            data={"seconds": 1.0},
            optim={"lr": 5e-5},
        ),
    }

    recipe: Literal["audio-codec"] = Field("audio-codec", description="Recipe of the run.")
    data: AudioDataConfig = Field(default_factory=AudioDataConfig, description="Training data.")
    model: AudioCodecModelConfig = Field(default_factory=AudioCodecModelConfig, description="The tokenizer.")
    loss: AudioCodecLossConfig = Field(default_factory=AudioCodecLossConfig, description="Losses.")
    optim: AdversarialOptimConfig = Field(default_factory=AdversarialOptimConfig, description="Optimizer and schedule.")
    eval: AudioCodecEvalConfig = Field(default_factory=AudioCodecEvalConfig, description="Validation.")
