"""Configuration keys of the recipe `mesh-transformer` and options of its pipeline.

Does not import torch, so that `--help` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from quintet.config import (
    LOGIT_CHUNK,
    EncodingConfig,
    LogitChunk,
    MeshDataConfig,
    NegativePromptOptions,
    RunConfig,
    SampleConfig,
    Section,
)
from quintet.config.presets import (
    BASE,
    BASE_TEXT,
    BASE_VOCABULARY,
    DEBUG_GENERATOR,
    DEBUG_TEXT,
    FEW_GENERATOR,
    SMALL_GENERATOR,
    preset,
)
from quintet.config.text import TextConfig

WOVEN_TOKENS_PER_FACE, WOVEN_TOKENS = 4, 16
"""Longest rows of woven meshes."""
MOST_FACES = 65_536
SMALLEST_CLOSED = 4
"""Faces of a tetrahedron."""


class MeshTransformerModelConfig(TextConfig):
    """A transformer over the faces of meshes; its keys are the keyword arguments of `MeshTransformer`."""

    kind: Literal["coarse_fine", "flat", "woven"] = Field(
        "coarse_fine",
        description="coarse_fine: a transformer over faces and a small one over the tokens of a face; "
        "flat: one transformer over all tokens; woven: one that also sees the open boundary, set by the tokenizer "
        "`woven`.",
    )
    num_codes: int | None = Field(
        None, gt=1, description="Number of codes (vocabulary size); null takes it from the tokenizer."
    )
    tokens_per_face: int | None = Field(
        None, ge=1, le=64, description="Number of codes per face; null takes it from the tokenizer."
    )
    max_faces: int = Field(256, ge=1, le=MOST_FACES, description="Maximum number of faces of a mesh.")
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Hidden dimension of the transformers.")
    depth: int = Field(
        6, ge=1, le=256, description="Number of blocks of the transformer over faces, or over all tokens (kind=flat)."
    )
    fine_depth: int = Field(
        2,
        ge=1,
        le=64,
        description="Number of blocks of the transformer over the tokens of a face (kind=coarse_fine).",
    )
    heads: int = Field(8, ge=1, description="Number of attention heads; must divide `model.dim` into even dimensions.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability of the output of each residual branch.")
    face_buckets: int = Field(
        32,
        ge=0,
        le=4096,
        description="Number of buckets of face counts, for conditioning on the face count; 0 disables it.",
    )
    condition: Literal["none", "points"] = Field(
        "none",
        description="Further conditioning: points, a point cloud of the surface with normals (`--condition points`).",
    )
    point_latents: int = Field(
        128,
        ge=8,
        le=4096,
        description="Number of vectors that a point cloud is encoded to, for cross-attention (model.condition=points).",
    )
    point_depth: int = Field(
        4, ge=1, le=64, description="Number of self-attention blocks of the encoder of point clouds."
    )
    open_meshes: bool | None = Field(
        None,
        description="Whether training meshes have open edges (tokenizer `woven`); null: determined and recorded when "
        "the run starts.",
    )

    @property
    def context_dim(self) -> int | None:
        """Dimension of the vectors for cross-attention; None without conditioning on texts and on points."""
        return None if self.text == "none" and self.condition == "none" else self.text_dim

    def max_tokens(self, faces: int) -> int:
        """The most tokens of a mesh of so many faces; most woven meshes need two or three tokens a face."""
        if self.kind == "woven":
            return WOVEN_TOKENS_PER_FACE * faces + WOVEN_TOKENS
        return faces * (self.tokens_per_face or 1)

    @model_validator(mode="after")
    def _fits(self) -> MeshTransformerModelConfig:
        # Rotary embeddings rotate pairs of dimensions.
        if self.dim % (2 * self.heads):
            raise ValueError(
                f"model.heads={self.heads} does not divide model.dim={self.dim} into heads of even dimension"
            )
        return self


class MeshTransformerDataConfig(EncodingConfig, MeshDataConfig):
    variants: int = Field(
        8,
        ge=1,
        le=1000,
        description="Number of augmented variants of each training mesh in the token cache (data.augment).",
    )
    allow_missing_captions: bool = Field(
        False, description="Train a text-conditional model even if some items have no caption."
    )
    num_points: int = Field(
        2048, ge=16, le=16_384, description="Number of points of a point cloud (model.condition=points)."
    )
    point_noise: float = Field(
        0.01,
        ge=0,
        le=0.5,
        description="Largest standard deviation of the noise on the points of a training cloud, as a fraction of the "
        "longest side of the unit box; each cloud has a random one up to it.",
    )
    point_crop: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="Largest fraction of a training cloud that is cut off at a random plane, as in partial scans; each "
        "cloud loses a random fraction up to it.",
    )
    point_normal_drop_prob: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Probability of setting the normals of a training cloud to 0, as in scans without normals.",
    )


class MeshTransformerLossConfig(Section):
    """Losses of next-token prediction."""

    cond_drop_prob: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Probability of dropping the text of a training item, for classifier-free guidance.",
    )
    point_drop_prob: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Probability of dropping the point cloud of a training item, for classifier-free guidance and for "
        "sampling without points.",
    )
    face_count_drop_prob: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Probability of dropping the face count of a mesh, to train with and without this conditioning.",
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Label smoothing: fraction of the target probability spread over all codes."
    )
    logit_chunk: LogitChunk = LOGIT_CHUNK
    window_faces: int | None = Field(
        None,
        ge=2,
        description="Train on a random window of N consecutive faces of larger meshes, another one in each epoch; with "
        "the tokenizer `woven` of 4 N + 16 tokens, and generated meshes may be of any size; null: full meshes only, "
        "and those above model.max_faces are skipped.",
    )


class MeshTransformerSampleConfig(SampleConfig):
    temperature: float = Field(1.0, ge=0, description="Temperature of token sampling; 0 takes the most likely token.")
    top_k: int | None = Field(None, ge=1, description="Sample from the K most likely codes; null uses all codes.")
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Sample from the most likely codes of this total probability; null uses all codes.",
    )
    guidance_scale: float = Field(1.0, ge=0, description="Classifier-free guidance scale; 1 disables guidance.")
    max_faces: int | None = Field(
        None,
        ge=1,
        le=MOST_FACES,
        description="Maximum number of faces of a generated mesh; null: model.max_faces. It may be larger than that "
        "with the tokenizer `woven` and loss.window_faces.",
    )
    faces: int = Field(
        0, ge=0, description="Approximate number of faces to generate; 0: no conditioning on the face count."
    )
    grammar: Literal["none", "strict"] = Field(
        "none",
        description="Grammar: `none` allows any code, and the end token after complete faces; `strict`, for the "
        "tokenizer `coordinates`, also forbids degenerate, unordered and duplicate faces. The tokenizer `woven` always "
        "has its own grammar.",
    )
    holes: Literal["auto", "never", "allowed"] = Field(
        "auto",
        description="Open edges of generated meshes, with the tokenizer `woven`: `never`, `allowed`, or `auto`: "
        "allowed if the training data has them (model.open_meshes).",
    )


class MeshTransformerOptions(NegativePromptOptions):
    points: Path | None = Field(
        None,
        description="Point cloud (PLY, or a text of x y z) or mesh file whose surface the meshes follow, for a model "
        "trained with --condition points; they are written in its coordinates.",
    )
    mesh: Path | None = Field(
        None, description="Mesh file with the first faces along z, in the box from -1 to 1, of a mesh to complete."
    )


class MeshTransformerConfig(RunConfig):
    OPTIONS = MeshTransformerOptions
    FROZEN_KEYS = ("tokenizer",)
    CONDITIONS: ClassVar = {"points": {"model.condition": "points"}}
    RECORDED = ("open_meshes",)
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG_GENERATOR,
            DEBUG_TEXT,
            model={"fine_depth": 1, "point_latents": 16, "point_depth": 1},
            data={"variants": 1, "num_points": 256},
            sample={"max_faces": 16},
        ),
        # For two CPU cores.
        "small": preset(
            SMALL_GENERATOR,
            model={"fine_depth": 2, "text_dim": 96},
            train={"steps": 3600},
            eval={"every": 500, "num_generated": 200},
        ),
        "base": preset(
            BASE,
            BASE_TEXT,
            BASE_VOCABULARY,
            model={"dim": 768, "depth": 24, "fine_depth": 4, "heads": 12, "max_faces": 800},
            data={"variants": 32, "num_workers": 4},
            train={"steps": 200_000},
            optim={"lr": 1e-4, "final_lr": 6e-5, "warmup_steps": 2000, "weight_decay": 0.1, "max_grad_norm": 1.0},
            sample={"temperature": 0.8, "top_p": 0.9},
        ),
        # Scaled and moved copies of each mesh, as many as fit into the token cache of a few hundred files.
        "few": preset(FEW_GENERATOR, data={"variants": 32}),
    }

    recipe: Literal["mesh-transformer"] = Field("mesh-transformer", description="Recipe of the run.")
    tokenizer: str | None = Field(
        None, description="Trained mesh tokenizer: RUN, RUN@STEP, an exported folder, `woven` or `coordinates`."
    )
    tokenizer_hash: str | None = Field(
        None, description="SHA-256 of the tokenizer's weights, recorded when the run starts."
    )
    data: MeshTransformerDataConfig = Field(default_factory=MeshTransformerDataConfig, description="Training data.")
    model: MeshTransformerModelConfig = Field(
        default_factory=MeshTransformerModelConfig, description="The transformer over faces."
    )
    loss: MeshTransformerLossConfig = Field(default_factory=MeshTransformerLossConfig, description="Losses.")
    sample: MeshTransformerSampleConfig = Field(
        default_factory=MeshTransformerSampleConfig, description="Samples during training, and decoding."
    )

    @model_validator(mode="after")
    def _faces_fit(self) -> MeshTransformerConfig:
        limit, is_woven = self.model.max_faces, self.model.kind == "woven"
        for key, faces in {"loss.window_faces": self.loss.window_faces, "sample.faces": self.sample.faces}.items():
            if faces is not None and faces > limit:
                raise ValueError(f"{key}={faces} is more than model.max_faces={limit}")
        # A new run gets its kind from the tokenizer later.
        slides = self.loss.window_faces is not None and (
            is_woven or (self.tokenizer or "").partition(":")[0] == "woven"
        )
        if not slides and (self.sample.max_faces or 0) > limit:
            raise ValueError(
                f"sample.max_faces={self.sample.max_faces} is more than model.max_faces={limit}; larger meshes need "
                "--tokenizer woven and loss.window_faces"
            )
        limits = {"model.max_faces": limit, "sample.max_faces": self.sample.max_faces}
        for key, faces in limits.items() if is_woven else ():
            if faces is not None and faces < SMALLEST_CLOSED:
                raise ValueError(
                    f"{key}={faces} is fewer than the {SMALLEST_CLOSED} faces of the smallest closed mesh, which the "
                    f"tokenizer `woven` needs; set it to {SMALLEST_CLOSED} or more"
                )
        if self.sample.faces and (not self.model.face_buckets or self.loss.face_count_drop_prob == 1):
            raise ValueError(
                "sample.faces needs a model that is conditioned on face counts: set model.face_buckets above 0 and "
                "loss.face_count_drop_prob below 1"
            )
        return self
