"""The keys of the recipe `mesh-autoencoder`. Free of torch, so that help is quick."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import MeshDataConfig, RunConfig, Section
from quintet.config.presets import BASE, DEBUG, SMALL, preset

Width = Annotated[int, Field(ge=8, multiple_of=8)]


class MeshAutoencoderModelConfig(Section):
    """The tokenizer; the keyword arguments of `MeshAutoencoder`."""

    kind: Literal["learned", "coordinates"] = Field(
        "learned",
        description="learned: as below; coordinates: the bins of the coordinates are the codes, and there is nothing "
        "to train.",
    )
    vertices_per_face: Literal[3, 4] = Field(3, description="3: triangles; 4: quads, of files that hold nothing else.")
    bins: int = Field(128, ge=2, le=1024, description="Steps of the grid along each axis; coordinates are cut to it.")
    coordinate_dim: int = Field(64, gt=0, description="Width of the embedding of one coordinate.")
    angle_dim: int = Field(16, gt=0, description="Width of the embedding of one angle.")
    area_dim: int = Field(16, gt=0, description="Width of the embedding of the area.")
    normal_dim: int = Field(64, gt=0, description="Width of the embedding of one part of the normal.")
    encoder_dims: tuple[Width, ...] = Field(
        (64, 128, 256, 256, 576), min_length=1, description="Widths of the graph convolutions over neighbouring faces."
    )
    encoder_attention: int = Field(0, ge=0, description="Layers of local attention behind the graph convolutions.")
    code_dim: int = Field(192, gt=0, description="Width of a vertex's vector before and behind the quantizer.")
    quantizer: Literal["lfq", "vq", "fsq"] = Field(
        "lfq", description="Lookup-free, vector or finite scalar quantization."
    )
    codebook_size: int = Field(
        16384, ge=2, le=2**24, description="Codes of a level; lfq needs a power of two, fsq a size it knows."
    )
    num_quantizers: int = Field(2, ge=1, le=64, description="Codes a vertex; a face has one set for each vertex.")
    decoder_dims: tuple[Width, ...] = Field(
        (128,) * 4 + (192,) * 4 + (256,) * 4 + (384,) * 4,
        min_length=1,
        description="Widths of the residual blocks along the faces, in their order.",
    )
    decoder_attention: int = Field(0, ge=0, description="Layers of local attention behind the residual blocks.")
    attention_window: int = Field(64, gt=0, description="How many faces away local attention sees, either way.")
    attention_head_dim: int = Field(32, ge=8, description="Width of a head of local attention.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout in every layer.")

    @model_validator(mode="after")
    def _heads_fit(self) -> MeshAutoencoderModelConfig:
        for layers, width in (
            (self.encoder_attention, self.encoder_dims[-1]),
            (self.decoder_attention, self.decoder_dims[-1]),
        ):
            if layers and width < self.attention_head_dim:
                raise ValueError(
                    f"model.attention_head_dim={self.attention_head_dim} does not fit into layers {width} wide"
                )
        return self


class MeshAutoencoderLossConfig(Section):
    """What the tokenizer is trained for."""

    bin_blur_sigma: float = Field(
        0.4, ge=0, le=4, description="Bins by which right answers are blurred (standard deviation); 0: not at all."
    )
    quantizer: float = Field(0.1, ge=0, description="Weight of the quantizer's own loss.")


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
        # Two CPU cores, minutes.
        "small": preset(
            SMALL,
            model={"coordinate_dim": 32, "normal_dim": 32, "encoder_dims": [64, 128, 256], "code_dim": 96}
            | {"codebook_size": 4096, "decoder_dims": [128] * 4 + [192] * 4},
            train={"steps": 4000},
            optim={"lr": 3e-3, "warmup_steps": 100, "max_grad_norm": 1.0},
        ),
        "base": preset(BASE, train={"steps": 200_000}, optim={"lr": 3e-4, "warmup_steps": 2000, "max_grad_norm": 1.0}),
    }

    recipe: Literal["mesh-autoencoder"] = Field("mesh-autoencoder", description="What is trained.")
    data: MeshDataConfig = Field(default_factory=MeshDataConfig, description="The files.")
    model: MeshAutoencoderModelConfig = Field(default_factory=MeshAutoencoderModelConfig, description="The tokenizer.")
    loss: MeshAutoencoderLossConfig = Field(
        default_factory=MeshAutoencoderLossConfig, description="What it is trained for."
    )
