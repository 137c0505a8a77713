"""The keys of the recipe `mesh-transformer` and the options of its pipeline. Free of torch, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import MeshDataConfig, NegativePromptOptions, RunConfig, SampleConfig, Section
from quintet.config.presets import BASE, BASE_TEXT, DEBUG_GENERATOR, DEBUG_TEXT, SMALL_GENERATOR, preset
from quintet.config.text import TextConfig


class MeshTransformerModelConfig(TextConfig):
    """A transformer over the faces of meshes; the keyword arguments of `MeshTransformer`."""

    kind: Literal["coarse_fine", "flat"] = Field(
        "coarse_fine",
        description="coarse_fine: one transformer over faces and a small one over the tokens of a face; "
        "flat: one over all tokens.",
    )
    num_codes: int | None = Field(None, gt=1, description="Vocabulary; none: that of the tokenizer.")
    tokens_per_face: int | None = Field(
        None, ge=1, le=64, description="Codes that make a face; none: those of the tokenizer."
    )
    max_faces: int = Field(256, ge=1, le=65_536, description="Faces of the largest mesh.")
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Width of the transformers.")
    depth: int = Field(6, ge=1, le=256, description="Blocks of the transformer over faces, or over all tokens.")
    fine_depth: int = Field(
        2, ge=1, le=64, description="Blocks of the transformer over the tokens of a face (kind=coarse_fine)."
    )
    heads: int = Field(8, ge=1, description="Attention heads, among which the width is shared out.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch of a block.")
    face_buckets: int = Field(
        32,
        ge=0,
        le=4096,
        description="Ranges of face counts that the model can be told apart from one another; 0: it is told none.",
    )

    @model_validator(mode="after")
    def _fits(self) -> MeshTransformerModelConfig:
        # Rotary positions turn pairs of numbers.
        if self.dim % (2 * self.heads):
            raise ValueError(f"model.heads={self.heads} does not divide model.dim={self.dim} into even parts")
        return self


class MeshTransformerDataConfig(MeshDataConfig):
    variants: int = Field(
        8, ge=1, le=1000, description="Augmented variants of each training mesh in the code cache (data.augment)."
    )
    allow_missing_captions: bool = Field(
        False, description="Train a text model although meshes without caption are there."
    )


class MeshTransformerLossConfig(Section):
    """What it is trained for."""

    cond_drop_prob: float = Field(
        0.1, ge=0, lt=1, description="Share of texts dropped, so that guidance has something to lead away from."
    )
    face_count_drop_prob: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of meshes whose number of faces is not told; meshes can then be made with and without.",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Share of the target spread over all codes.")
    window_faces: int | None = Field(
        None,
        ge=2,
        description="Faces of the stretch that is trained on of a larger mesh, drawn anew each epoch; none: whole "
        "meshes only, and those of more than model.max_faces are left out.",
    )


class MeshTransformerSampleConfig(SampleConfig):
    temperature: float = Field(1.0, ge=0, description="Of drawing a token; 0: the likeliest.")
    top_k: int | None = Field(None, ge=1, description="Draw from so many likeliest codes.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Draw from the likeliest codes of this total probability."
    )
    guidance_scale: float = Field(1.0, ge=0, description="Classifier-free guidance; 1: none.")
    max_faces: int | None = Field(None, ge=1, description="Faces after which a mesh is cut off; none: the model's.")
    faces: int = Field(0, ge=0, description="Number of faces to ask for, roughly; 0: as many as it takes.")
    grammar: Literal["none", "strict"] = Field(
        "none",
        description="none: any code, and the end after a whole face; strict, for the tokenizer `coordinates`: no face "
        "without an area, out of order or twice.",
    )


class MeshTransformerOptions(NegativePromptOptions):
    mesh: Path | None = Field(
        None, description="A part of a mesh to go on from: its first faces along z, in the box -1 to 1."
    )


class MeshTransformerConfig(RunConfig):
    OPTIONS = MeshTransformerOptions
    FROZEN_KEYS = ("tokenizer",)
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG_GENERATOR, DEBUG_TEXT, model={"fine_depth": 1}, data={"variants": 1}, sample={"max_faces": 16}
        ),
        # Two CPU cores, minutes.
        "small": preset(
            SMALL_GENERATOR,
            model={"fine_depth": 2, "text_dim": 96},
            train={"steps": 3600},
            eval={"every": 500, "num_generated": 200},
        ),
        "base": preset(
            BASE,
            BASE_TEXT,
            model={"dim": 768, "depth": 24, "fine_depth": 4, "heads": 12, "max_faces": 800},
            data={"variants": 32, "num_workers": 4},
            train={"steps": 200_000},
            optim={"lr": 1e-4, "final_lr": 6e-5, "warmup_steps": 2000, "weight_decay": 0.1, "max_grad_norm": 1.0},
            sample={"temperature": 0.8, "top_p": 0.9},
        ),
    }

    recipe: Literal["mesh-transformer"] = Field("mesh-transformer", description="What is trained.")
    tokenizer: str | None = Field(
        None, description="The trained tokenizer: RUN, RUN@step, an exported folder, or `coordinates`."
    )
    tokenizer_hash: str | None = Field(None, description="Of its weights; none: that of the tokenizer, from then on.")
    data: MeshTransformerDataConfig = Field(default_factory=MeshTransformerDataConfig, description="The files.")
    model: MeshTransformerModelConfig = Field(
        default_factory=MeshTransformerModelConfig, description="The transformer over faces."
    )
    loss: MeshTransformerLossConfig = Field(
        default_factory=MeshTransformerLossConfig, description="What it is trained for."
    )
    sample: MeshTransformerSampleConfig = Field(
        default_factory=MeshTransformerSampleConfig, description="Decoding, here and while training."
    )

    @model_validator(mode="after")
    def _faces_fit(self) -> MeshTransformerConfig:
        most = self.model.max_faces
        asked = {"loss.window_faces": self.loss.window_faces, "sample.max_faces": self.sample.max_faces}
        for key, faces in {**asked, "sample.faces": self.sample.faces}.items():
            if faces is not None and faces > most:
                raise ValueError(f"{key}={faces} is more than model.max_faces={most}")
        if self.sample.faces and (not self.model.face_buckets or self.loss.face_count_drop_prob == 1):
            raise ValueError(
                "sample.faces needs a model that is told numbers of faces: model.face_buckets above 0, "
                "loss.face_count_drop_prob below 1"
            )
        return self
