"""Owns the keys of `MaskGit`. Free of torch, so that help is quick."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from quintet.config import Section


class MaskGitConfig(Section):
    """A masked transformer over a grid of tokens."""

    grid: tuple[int, ...] | None = Field(
        None, description="Places of codes along each axis; none: those of the tokenizer."
    )
    num_codes: int | None = Field(None, gt=1, description="Vocabulary; none: that of the tokenizer.")
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Width of the transformer.")
    depth: int = Field(6, ge=1, le=256, description="Blocks of the transformer.")
    heads: int = Field(8, ge=1, description="Attention heads, among which the width is shared out.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch of a block.")
    text: Literal["bytes", "none"] = Field("bytes", description="Text encoder, trained with the model; none: no text.")
    text_dim: int = Field(128, ge=16, le=16_384, multiple_of=8, description="Width of the byte encoder.")
    text_depth: int = Field(2, ge=1, le=64, description="Blocks of the byte encoder.")
    text_heads: int = Field(4, ge=1, description="Attention heads of the byte encoder.")
    text_length: int = Field(96, ge=8, le=4096, description="Longest text in bytes; longer ones are cut.")
    self_conditioning: bool = Field(False, description="Show the model its own prediction of the step before.")

    @model_validator(mode="after")
    def _fits(self) -> MaskGitConfig:
        for dim, heads, name in ((self.dim, self.heads, "heads"), (self.text_dim, self.text_heads, "text_heads")):
            if dim % heads:
                raise ValueError(f"model.{name}={heads} does not divide a width of {dim}")
        return self
