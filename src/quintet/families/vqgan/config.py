"""Owns the keys of the recipe `vqgan`. Imports no torch, so that help is quick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import PictureDataConfig, RunConfig, Section
from quintet.config.adversarial import AdversarialOptimConfig, PictureLossConfig


class VQGanModelConfig(Section):
    """The tokenizer; the keyword arguments of `VQGanVAE`."""

    image_size: int | tuple[int, int] = Field(64, description="Side in pixels, or [height, width].")
    channels: Literal[1, 3, 4] = Field(3, description="1: grey, 3: RGB, 4: RGBA.")
    dim: int = Field(
        64, ge=8, multiple_of=8, description="Width at the finest resolution; doubles downwards to 8x at most."
    )
    layers: int = Field(
        3, ge=1, le=12, description="Halvings of the resolution; one code stands for 2^layers pixels a side."
    )
    blocks: int = Field(
        1, ge=0, le=64, description="Residual blocks at each resolution, in the encoder and in the decoder."
    )
    quantizer: Literal["vq", "lfq", "fsq"] = Field(
        "vq", description="Vector, lookup-free or finite scalar quantization."
    )
    codebook_size: int = Field(
        1024, ge=2, le=2**24, description="Codes of a level; lfq needs a power of two, fsq a size it knows."
    )
    quantizer_levels: int = Field(
        1, ge=1, le=64, description="More than one: residual quantization, so many codes a position."
    )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes."""
        height, width = self.size
        return height >> self.layers, width >> self.layers

    @model_validator(mode="after")
    def _divisible(self) -> VQGanModelConfig:
        factor = 2**self.layers
        if any(side <= 0 or side % factor for side in self.size):
            near = tuple(max(factor, round(side / factor) * factor) for side in self.size)
            raise ValueError(
                f"model.image_size={self.image_size} is not divisible by 2^model.layers = {factor}; "
                f"the nearest that is: {near[0] if near[0] == near[1] else list(near)}"
            )
        return self


class VQGanLossConfig(PictureLossConfig):
    """What the tokenizer is trained for."""

    adversarial: float = Field(0.1, ge=0, description="Weight of the adversarial loss, on top of the adaptive weight.")
    adaptive: bool = Field(
        True, description="Scale the adversarial gradient to the reconstruction's at the last layer."
    )
    lecam: float = Field(0.0, ge=0, description="Weight of LeCam regularisation.")


class VQGanConfig(RunConfig):
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "debug": {
            "model.image_size": 32,
            "model.dim": 16,
            "model.layers": 2,
            "model.codebook_size": 256,
            "train.steps": 20,
            "train.batch_size": 8,
            "loss.discriminator_start": 10,
            "loss.discriminator_ramp": 5,
            "loss.discriminator_dim": 16,
            "eval.every": 10,
            "sample.every": 10,
            "checkpoint.every": 10,
            "log.every": 5,
            "data.workers": 0,
        },
        # Two CPU cores, minutes: narrow, many steps, a high rate.
        "small": {
            "model.dim": 16,
            "train.steps": 5000,
            "train.batch_size": 16,
            "optim.lr": 3e-3,
            "optim.warmup_steps": 50,
            "loss.reconstruction": "l2",
            "loss.discriminator_start": 3333,
            "loss.discriminator_ramp": 300,
            "loss.discriminator_dim": 16,
            "eval.every": 500,
            "sample.every": 500,
            "checkpoint.every": 500,
            "data.workers": 0,  # the pictures are soon in memory, and workers would take turns with the computation
        },
        "base": {
            "model.image_size": 256,
            "model.dim": 128,
            "model.layers": 4,
            "model.blocks": 2,
            "model.codebook_size": 16384,
            "model.quantizer": "fsq",
            "train.steps": 300_000,
            "train.batch_size": 64,
            "optim.lr": 1e-4,
            "optim.warmup_steps": 5000,
            "ema.decay": 0.9995,
            "loss.discriminator_start": 20_000,
            "loss.discriminator_ramp": 5000,
            "loss.discriminator_dim": 64,
            "loss.lecam": 0.001,
            "eval.every": 5000,
            "sample.every": 5000,
            "checkpoint.every": 5000,
            "engine.precision": "bf16",
            "data.workers": 8,
            "data.random_crop": True,
        },
    }

    recipe: Literal["vqgan"] = Field("vqgan", description="What is trained.")
    data: PictureDataConfig = Field(default_factory=PictureDataConfig, description="The files.")
    model: VQGanModelConfig = Field(default_factory=VQGanModelConfig, description="The tokenizer.")
    loss: VQGanLossConfig = Field(default_factory=VQGanLossConfig, description="What it is trained for.")
    optim: AdversarialOptimConfig = Field(default_factory=AdversarialOptimConfig, description="Optimizer and schedule.")
