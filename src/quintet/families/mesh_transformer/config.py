"""Owns the keys of `MeshTransformer`. Free of torch, so that help is quick."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from quintet.config import Section
from quintet.nn.maskgit_config import MaskGitConfig


class MeshTransformerModelConfig(Section):
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
    text: str = Field(
        "bytes",
        description="What reads the text: bytes, a byte encoder trained with the model; classes, a vector for each "
        "class; hf:PATH_OR_NAME, a frozen encoder of transformers; none, no text.",
    )
    classes: tuple[str, ...] | None = Field(
        None, description="Names of the classes for text=classes; none: the captions found in the data."
    )
    text_dim: int = Field(128, ge=16, le=16_384, multiple_of=8, description="Width of the vectors of texts.")
    text_depth: int = Field(2, ge=1, le=64, description="Blocks of the byte encoder.")
    text_heads: int = Field(4, ge=1, description="Attention heads of the byte encoder.")
    text_length: int = Field(
        128, ge=8, le=4096, description="Longest text, in bytes or in a frozen encoder's tokens; longer ones are cut."
    )

    def text_keys(self) -> MaskGitConfig:
        """The keys of the text, as what makes a text encoder takes them."""
        return MaskGitConfig(
            text=self.text,
            classes=self.classes,
            text_dim=self.text_dim,
            text_depth=self.text_depth,
            text_heads=self.text_heads,
            text_length=self.text_length,
        )

    @model_validator(mode="after")
    def _fits(self) -> MeshTransformerModelConfig:
        # Rotary positions turn pairs of numbers.
        if self.dim % (2 * self.heads):
            raise ValueError(f"model.heads={self.heads} does not divide model.dim={self.dim} into even parts")
        self.text_keys()
        return self
