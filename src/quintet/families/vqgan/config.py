"""Configuration keys of the recipe `vqgan`. Does not import torch, so that `--help` is fast."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import ImageDataConfig, RunConfig, Section
from quintet.config.adversarial import AdversarialOptimConfig, ImageLossConfig
from quintet.config.presets import BASE, DEBUG_GAN, FEW, SMALL, discriminator, preset

JANUS_VQ, EMU3_VQ, DIFFUSERS_VQ = "janus_vqgan", "emu3_vqgan", "diffusers:VQModel"
"""Kinds of pretrained tokenizers."""


class VQGanModelConfig(Section):
    """The tokenizer; the keyword arguments of `VQGanVAE`."""

    image_size: int | tuple[int, int] = Field(64, description="Side of a square image in pixels, or [height, width].")
    channels: Literal[1, 3, 4] = Field(3, description="Number of channels: 1 (grayscale), 3 (RGB) or 4 (RGBA).")
    dim: int = Field(
        64,
        ge=8,
        multiple_of=8,
        description="Number of channels at the highest resolution; doubles at each downsampling, up to 8 times `dim`.",
    )
    layers: int = Field(
        3, ge=1, le=12, description="Number of downsamplings by 2; one code covers 2^layers x 2^layers pixels."
    )
    blocks: int = Field(
        1, ge=0, le=64, description="Number of residual blocks at each resolution, in the encoder and in the decoder."
    )
    shortcut: bool = Field(
        False,
        description="Add linear layers between patches and codes around the convolutions; training then starts from a "
        "linear transform instead of noise.",
    )
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
        1, ge=1, le=64, description="Number of residual quantizers, each with one code per position; 1: no residual."
    )

    pretrained_config: str | None = Field(
        None,
        description="Configuration (JSON) of a pretrained tokenizer of transformers or diffusers, which replaces the "
        "model of the other keys and is not trained; recorded from its folder. null: no pretrained tokenizer.",
    )

    @field_validator("pretrained_config")
    @classmethod
    def _is_a_configuration(cls, text: str | None) -> str | None:
        try:
            is_valid = text is None or isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            is_valid = False
        if not is_valid:
            raise ValueError("is not the configuration of a pretrained model; pass the folder of the model instead")
        return text

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of codes."""
        height, width = self.size
        return height >> self.layers, width >> self.layers

    @model_validator(mode="after")
    def _divisible(self) -> VQGanModelConfig:
        factor = 2**self.layers
        if any(side <= 0 or side % factor for side in self.size):
            near = tuple(max(factor, round(side / factor) * factor) for side in self.size)
            raise ValueError(
                f"model.image_size={self.image_size} is not divisible by 2^model.layers = {factor}; "
                f"the nearest valid size is {near[0] if near[0] == near[1] else list(near)}"
            )
        return self


class VQGanLossConfig(ImageLossConfig):
    """Losses of the tokenizer."""

    adversarial: float = Field(
        0.1, ge=0, description="Weight of the adversarial loss; multiplied by the adaptive weight."
    )
    adaptive_weight: bool = Field(
        True,
        description="Scale the adversarial gradient to that of the reconstruction loss at the last layer.",
    )
    lecam: float = Field(0.0, ge=0, description="Weight of LeCam regularization; 0 disables it.")


class VQGanConfig(RunConfig):
    TRANSFORMERS = (JANUS_VQ, EMU3_VQ, DIFFUSERS_VQ)
    PRESETS: ClassVar = {
        "debug": preset(DEBUG_GAN, model={"image_size": 32, "dim": 16, "layers": 2, "codebook_size": 256}),
        # For two CPU cores and a few minutes: a narrow model, many steps, a high learning rate.
        "small": preset(
            SMALL,
            discriminator(2500, ramp=250, dim=16),
            model={"dim": 16},
            train={"steps": 3000},
            optim={"name": "muon", "lr": 3e-3, "muon_lr": 0.02, "muon_kernels": True, "warmup_steps": 50}
            | {"discriminator.name": "adamw"},
            loss={"reconstruction": "l2"},
        ),
        "base": preset(
            BASE,
            discriminator(20_000, ramp=5000, dim=64),
            model={"image_size": 256, "dim": 128, "layers": 4, "blocks": 2, "codebook_size": 16384, "quantizer": "fsq"},
            train={"steps": 300_000},
            optim={"lr": 1e-4, "warmup_steps": 5000},
            loss={"lecam": 0.001},
            data={"random_crop": True},
        ),
        # LeCam is made for discriminators of little data; random crops are the augmentation that colours and captions
        # survive.
        "few": preset(
            FEW,
            {"loss.discriminator_start": 200, "loss.discriminator_ramp": 200},
            data={"random_crop": True},
            loss={"lecam": 0.001},
        ),
    }

    recipe: Literal["vqgan"] = Field("vqgan", description="Recipe of the run.")
    data: ImageDataConfig = Field(default_factory=ImageDataConfig, description="Training data.")
    model: VQGanModelConfig = Field(default_factory=VQGanModelConfig, description="The tokenizer.")
    loss: VQGanLossConfig = Field(default_factory=VQGanLossConfig, description="Losses.")
    optim: AdversarialOptimConfig = Field(default_factory=AdversarialOptimConfig, description="Optimizer and schedule.")
