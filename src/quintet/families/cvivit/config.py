"""Owns the keys of the recipe `cvivit`. Imports no torch, so that help is quick."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import RunConfig, Section, VideoDataConfig
from quintet.config.adversarial import AdversarialOptimConfig, ImageLossConfig
from quintet.config.presets import BASE, DEBUG_GAN, MUON, SMALL, discriminator, preset

CHANNELS = 3


class CViViTModelConfig(Section):
    """The tokenizer; the keyword arguments of `CViViT`."""

    image_size: int | tuple[int, int] = Field(64, description="Side in pixels, or [height, width].")
    patch_size: int = Field(8, gt=0, description="Side in pixels of the square that one code stands for.")
    temporal_patch_size: int = Field(
        2, gt=0, description="Frames that one code stands for; the first frame of a video has codes of its own."
    )
    max_frames: int = Field(257, gt=0, description="Frames of the longest video.")
    dim: int = Field(256, ge=8, multiple_of=8, description="Width.")
    spatial_depth: int = Field(
        2, gt=0, le=64, description="Blocks that look over one moment, in the encoder and in the decoder."
    )
    temporal_depth: int = Field(
        2, gt=0, le=64, description="Blocks that look back in time, in the encoder and in the decoder."
    )
    shortcut: bool = Field(
        False,
        description="Tokens pass by the blocks too: training begins with the best linear transform, and improves it.",
    )
    filter_dim: int | None = Field(
        None,
        ge=8,
        multiple_of=8,
        description="Width of the convolutions that filter the frames before patches and after them; none: no filter.",
    )
    filter_blocks: int = Field(1, ge=1, le=16, description="Blocks of such a filter.")
    heads: int = Field(4, gt=0, description="Attention heads.")
    head_dim: int = Field(64, ge=4, multiple_of=4, description="Width of an attention head.")
    quantizer: Literal["vq", "lfq", "fsq"] = Field(
        "vq", description="Vector, lookup-free or finite scalar quantization."
    )
    codebook_size: int = Field(
        1024, ge=2, le=2**24, description="Codes of a level; lfq needs a power of two, fsq a size it knows."
    )
    num_quantizers: int = Field(
        1, ge=1, le=64, description="More than one: residual quantization, so many codes a position."
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
        """Rows and columns of codes at one moment."""
        height, width = self.size
        return height // self.patch_size, width // self.patch_size

    def moments(self, frames: int) -> int:
        """How many moments of codes so many frames have; a last one may be filled in part."""
        return 1 + -(-(frames - 1) // self.temporal_patch_size)

    def frames(self, moments: int) -> int:
        """How many frames so many moments of codes stand for."""
        return 1 + (moments - 1) * self.temporal_patch_size

    @model_validator(mode="after")
    def _divisible(self) -> CViViTModelConfig:
        if any(side <= 0 or side % self.patch_size for side in self.size):
            near = tuple(max(self.patch_size, round(side / self.patch_size) * self.patch_size) for side in self.size)
            raise ValueError(
                f"model.image_size={self.image_size} is not divisible by model.patch_size = {self.patch_size}; "
                f"the nearest that is: {near[0] if near[0] == near[1] else list(near)}"
            )
        if self.filter_dim is not None and any(side % 2 for side in self.size):
            raise ValueError(f"model.filter_dim is for sides of an even number of pixels, not {list(self.size)}")
        return self


class CViViTLossConfig(ImageLossConfig):
    """What the tokenizer is trained for; the discriminator looks at single frames."""

    reconstruction: Literal["l1", "l2"] = Field("l2", description="Distance of pixels.")
    frame_difference: float = Field(
        0.0,
        ge=0,
        description="Weight of the distance of changes from each frame to the next: what is wrong should at least "
        "stand still.",
    )
    perceptual: float = Field(0.1, ge=0, description="Weight of the perceptual loss, where weights are given.")


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
        # One CPU core, a quarter of an hour: it begins as a transform, and shallow blocks improve on it.
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
            | {"codebook_size": 65536, "quantizer": "lfq"},
            train={"steps": 500_000},
            optim={"lr": 1e-4, "warmup_steps": 5000, "max_grad_norm": 1.0},
            data={"random_crop": True},
        ),
    }

    recipe: Literal["cvivit"] = Field("cvivit", description="What is trained.")
    data: VideoDataConfig = Field(default_factory=VideoDataConfig, description="The files.")
    model: CViViTModelConfig = Field(default_factory=CViViTModelConfig, description="The tokenizer.")
    loss: CViViTLossConfig = Field(default_factory=CViViTLossConfig, description="What it is trained for.")
    optim: AdversarialOptimConfig = Field(default_factory=AdversarialOptimConfig, description="Optimizer and schedule.")

    @model_validator(mode="after")
    def _whole_moments(self) -> CViViTConfig:
        frames, step = self.data.frames, self.model.temporal_patch_size
        if (frames - 1) % step:
            raise ValueError(
                f"data.frames={frames} is not 1 and a multiple of model.temporal_patch_size = {step}; the nearest that is: "
                f"{1 + step * max(1, round((frames - 1) / step))}"
            )
        if frames > self.model.max_frames:
            raise ValueError(f"data.frames={frames} is more than model.max_frames={self.model.max_frames}")
        return self
