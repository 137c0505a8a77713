"""Configuration keys of the recipe `cvivit`. Does not import torch, so that `--help` is fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import RunConfig, Section, VideoDataConfig
from quintet.config.adversarial import AdversarialOptimConfig, ImageLossConfig
from quintet.config.presets import BASE, DEBUG_GAN, MUON, SMALL, discriminator, preset

CHANNELS = 3


class CViViTModelConfig(Section):
    """The tokenizer; the keyword arguments of `CViViT`."""

    image_size: int | tuple[int, int] = Field(64, description="Side of a square image in pixels, or [height, width].")
    patch_size: int = Field(8, gt=0, description="Side in pixels of the square patch that one code covers.")
    temporal_patch_size: int = Field(
        2, gt=0, description="Number of frames that one code covers; the first frame of a video is encoded alone."
    )
    max_frames: int = Field(257, gt=0, description="Maximum number of frames of a video.")
    dim: int = Field(256, ge=8, multiple_of=8, description="Dimension of the transformers.")
    spatial_depth: int = Field(
        2,
        gt=0,
        le=64,
        description="Number of spatial blocks (attention within a latent frame), in the encoder and in the decoder.",
    )
    temporal_depth: int = Field(
        2,
        gt=0,
        le=64,
        description="Number of temporal blocks (causal attention over time), in the encoder and in the decoder.",
    )
    shortcut: bool = Field(
        False,
        description="Add a residual connection around the transformers; training then starts from a linear transform.",
    )
    temporal_prediction: bool = Field(
        False,
        description="Encode each later latent frame as its difference from the decoded one before it: what stands "
        "still becomes sharper with each latent frame.",
    )
    filter_dim: int | None = Field(
        None,
        ge=8,
        multiple_of=8,
        description="Channels of the convolutions that filter frames before and after patches; null: no filter.",
    )
    filter_blocks: int = Field(1, ge=1, le=16, description="Number of residual blocks of the frame filter.")
    heads: int = Field(4, gt=0, description="Number of attention heads.")
    head_dim: int = Field(64, ge=4, multiple_of=4, description="Dimension of each attention head.")
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

    @property
    def channels(self) -> int:
        return CHANNELS

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of codes in one latent frame."""
        height, width = self.size
        return height // self.patch_size, width // self.patch_size

    def latent_frames(self, frames: int) -> int:
        """Number of latent frames of a video of `frames` frames; the last one may be partly filled."""
        return 1 + -(-(frames - 1) // self.temporal_patch_size)

    def frames(self, latent_frames: int) -> int:
        """Number of frames that `latent_frames` latent frames cover."""
        return 1 + (latent_frames - 1) * self.temporal_patch_size

    @model_validator(mode="after")
    def _divisible(self) -> CViViTModelConfig:
        if any(side <= 0 or side % self.patch_size for side in self.size):
            near = tuple(max(self.patch_size, round(side / self.patch_size) * self.patch_size) for side in self.size)
            raise ValueError(
                f"model.image_size={self.image_size} is not divisible by model.patch_size = {self.patch_size}; "
                f"the nearest valid size is {near[0] if near[0] == near[1] else list(near)}"
            )
        if self.filter_dim is not None and any(side % 2 for side in self.size):
            raise ValueError(f"model.filter_dim needs an even height and width, not {list(self.size)}")
        return self


class CViViTLossConfig(ImageLossConfig):
    """Losses of the tokenizer; the discriminator sees single frames."""

    reconstruction: Literal["l1", "l2"] = Field(
        "l2", description="Distance between pixels: l1 (absolute) or l2 (squared)."
    )
    frame_difference: float = Field(
        0.0,
        ge=0,
        description="Weight of the loss on differences between consecutive frames (less flicker); 0 disables it.",
    )
    perceptual: float = Field(
        0.1, ge=0, description="Weight of the perceptual loss, if loss.perceptual_weights is set."
    )


class CViViTConfig(RunConfig):
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG_GAN,
            model={"image_size": 32, "dim": 32, "spatial_depth": 1, "temporal_depth": 1, "heads": 2, "head_dim": 16}
            | {"codebook_size": 256},
            data={"frames": 5},
            train={"batch_size": 4},
            sample={"num": 4},
        ),
        # For one CPU core and a quarter of an hour: starts as a linear transform that shallow blocks improve.
        "small": preset(
            SMALL,
            MUON,
            model={
                "image_size": 32,
                "patch_size": 4,
                "temporal_patch_size": 4,
                "dim": 128,
                "head_dim": 32,
                "spatial_depth": 1,
            }
            | {"temporal_depth": 2, "shortcut": True, "filter_dim": 32},
            train={"steps": 2000, "batch_size": 4},
            optim={"lr": 1e-3, "warmup_steps": 50},
            loss={"discriminator": False, "frame_difference": 1.0},
            eval={"every": 1000},
            sample={"every": 1000},
            checkpoint={"every": 1000},
        ),
        "base": preset(
            BASE,
            discriminator(50_000, ramp=5000, dim=64),
            model={"image_size": 128, "dim": 512, "spatial_depth": 4, "temporal_depth": 4, "heads": 8}
            | {"codebook_size": 8192, "quantizer": "lfq"},
            train={"steps": 500_000},
            optim={"lr": 1e-4, "warmup_steps": 5000, "max_grad_norm": 1.0},
            data={"random_crop": True},
        ),
    }

    recipe: Literal["cvivit"] = Field("cvivit", description="Recipe of the run.")
    data: VideoDataConfig = Field(default_factory=VideoDataConfig, description="Training data.")
    model: CViViTModelConfig = Field(default_factory=CViViTModelConfig, description="The tokenizer.")
    loss: CViViTLossConfig = Field(default_factory=CViViTLossConfig, description="Losses.")
    optim: AdversarialOptimConfig = Field(default_factory=AdversarialOptimConfig, description="Optimizer and schedule.")

    @model_validator(mode="after")
    def _full_latent_frames(self) -> CViViTConfig:
        frames, step = self.data.frames, self.model.temporal_patch_size
        if (frames - 1) % step:
            raise ValueError(
                f"data.frames={frames} is not 1 plus a multiple of model.temporal_patch_size = {step}; "
                f"the nearest valid number is {1 + step * max(1, round((frames - 1) / step))}"
            )
        if frames > self.model.max_frames:
            raise ValueError(f"data.frames={frames} exceeds model.max_frames={self.model.max_frames}")
        return self
