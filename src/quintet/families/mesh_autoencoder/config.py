"""Configuration keys of the recipe `mesh-autoencoder`. Does not import torch, so that `--help` is fast."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import MeshDataConfig, RunConfig, Section
from quintet.config.presets import BASE, DEBUG, SMALL, preset

Width = Annotated[int, Field(ge=8, multiple_of=8)]


SMALLEST_GRID = 4
"""Bins of the tokenizer `woven`, so that there is a position for the next vertex of any generated mesh."""


class MeshAutoencoderModelConfig(Section):
    """The tokenizer; its keys are the keyword arguments of `MeshAutoencoder`."""

    kind: Literal["learned", "coordinates", "woven"] = Field(
        "learned",
        description="learned: a trained autoencoder; coordinates: the quantized coordinates are the codes; woven: each "
        "vertex is written once, with codes for how the next face is attached. Only `learned` is trained.",
    )
    vertices_per_face: Literal[3, 4] = Field(
        3, description="Vertices per face: 3 (triangles), or 4 (quads; other files are skipped)."
    )
    bins: int = Field(128, ge=2, le=1024, description="Number of bins per axis to which coordinates are quantized.")
    coordinate_dim: int = Field(64, gt=0, description="Dimension of the embedding of a coordinate.")
    angle_dim: int = Field(16, gt=0, description="Dimension of the embedding of an angle.")
    area_dim: int = Field(16, gt=0, description="Dimension of the embedding of the area of a face.")
    normal_dim: int = Field(64, gt=0, description="Dimension of the embedding of a component of the normal.")
    encoder_dims: tuple[Width, ...] = Field(
        (64, 128, 256, 256, 576),
        min_length=1,
        description="Dimensions of the graph convolution layers over adjacent faces, one per layer.",
    )
    encoder_attention: int = Field(
        0, ge=0, description="Number of local attention layers after the graph convolutions."
    )
    code_dim: int = Field(192, gt=0, description="Dimension of the vector of a vertex before and after quantization.")
    quantizer: Literal["lfq", "vq", "fsq"] = Field(
        "lfq", description="Quantizer: vq (vector), lfq (lookup-free) or fsq (finite scalar)."
    )
    codebook_size: int = Field(
        16384,
        ge=2,
        le=2**24,
        description="Number of codes of each quantizer; lfq needs a power of two, fsq one of its supported sizes.",
    )
    num_quantizers: int = Field(
        2, ge=1, le=64, description="Number of residual quantizers, each with one code per vertex of a face."
    )
    decoder_dims: tuple[Width, ...] = Field(
        (128,) * 4 + (192,) * 4 + (256,) * 4 + (384,) * 4,
        min_length=1,
        description="Dimensions of the residual blocks along the sequence of faces, one per block.",
    )
    decoder_attention: int = Field(0, ge=0, description="Number of local attention layers after the residual blocks.")
    attention_window: int = Field(64, gt=0, description="Local attention: number of visible faces on either side.")
    attention_head_dim: int = Field(32, ge=8, description="Local attention: dimension of each attention head.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability of every layer.")

    @model_validator(mode="after")
    def _can_be_woven(self) -> MeshAutoencoderModelConfig:
        if self.kind == "woven" and (self.vertices_per_face != 3 or self.bins < SMALLEST_GRID):
            raise ValueError(
                f"the tokenizer `woven` takes triangles (model.vertices_per_face=3) and model.bins of at least "
                f"{SMALLEST_GRID}"
            )
        return self

    @model_validator(mode="after")
    def _heads_fit(self) -> MeshAutoencoderModelConfig:
        for layers, width in (
            (self.encoder_attention, self.encoder_dims[-1]),
            (self.decoder_attention, self.decoder_dims[-1]),
        ):
            if layers and width < self.attention_head_dim:
                raise ValueError(
                    f"model.attention_head_dim={self.attention_head_dim} is larger than the layer's dimension {width}"
                )
        return self


class MeshAutoencoderLossConfig(Section):
    """Losses of the tokenizer."""

    bin_blur_sigma: float = Field(
        0.4, ge=0, le=4, description="Standard deviation, in bins, of the Gaussian blur of target bins; 0 disables it."
    )
    quantizer: float = Field(0.1, ge=0, description="Weight of the quantizer loss (commitment or entropy).")


class MeshAutoencoderConfig(RunConfig):
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG,
            model={
                "coordinate_dim": 16,
                "normal_dim": 16,
                "encoder_dims": [32, 64],
                "code_dim": 32,
                "decoder_dims": [64, 64],
            }
            | {"codebook_size": 1024},
            eval={"batches": 2},
            sample={"num": 4},
        ),
        # For two CPU cores.
        "small": preset(
            SMALL,
            model={"coordinate_dim": 32, "normal_dim": 32, "encoder_dims": [64, 128, 256], "code_dim": 96}
            | {"codebook_size": 4096, "decoder_dims": [128] * 4 + [192] * 4},
            train={"steps": 4000},
            optim={"lr": 3e-3, "warmup_steps": 100, "max_grad_norm": 1.0},
        ),
        "base": preset(BASE, train={"steps": 200_000}, optim={"lr": 3e-4, "warmup_steps": 2000, "max_grad_norm": 1.0}),
    }

    recipe: Literal["mesh-autoencoder"] = Field("mesh-autoencoder", description="Recipe of the run.")
    data: MeshDataConfig = Field(default_factory=MeshDataConfig, description="Training data.")
    model: MeshAutoencoderModelConfig = Field(default_factory=MeshAutoencoderModelConfig, description="The tokenizer.")
    loss: MeshAutoencoderLossConfig = Field(default_factory=MeshAutoencoderLossConfig, description="Losses.")
