"""Owns the keys of `MaskGit`. Free of torch, so that help is quick."""

from __future__ import annotations

from collections import Counter

from pydantic import Field, field_validator, model_validator

from quintet.config import Section

PRETRAINED = "hf:"
"""Before the folder or name of a frozen text encoder."""


class MaskGitConfig(Section):
    """A masked transformer over a grid of tokens."""

    grid: tuple[int, ...] | None = Field(
        None, description="Places of codes along each axis; none: those of the tokenizer."
    )
    num_codes: int | None = Field(None, gt=1, description="Vocabulary; none: that of the tokenizer.")
    low_grid: tuple[int, ...] | None = Field(
        None,
        description="Grid of the low-resolution codes that a super-resolution model is given; "
        "none: this is no super-resolution model.",
    )
    low_codes: int | None = Field(
        None,
        gt=1,
        description="Vocabulary of the low-resolution codes that a super-resolution model is given; "
        "none: this is no super-resolution model.",
    )
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Width of the transformer.")
    depth: int = Field(6, ge=1, le=256, description="Blocks of the transformer.")
    heads: int = Field(8, ge=1, description="Attention heads, among which the width is shared out.")
    rotary: bool = Field(False, description="Let attention see distances too, by turning queries and keys.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch of a block.")
    text: str = Field(
        "bytes",
        description="What reads the text: bytes, a byte encoder trained with the model; classes, a vector for each "
        "class; hf:PATH_OR_NAME, a frozen encoder of transformers; none, no text.",
    )
    classes: tuple[str, ...] | None = Field(
        None, description="Names of the classes for text=classes; none: the captions found in the data."
    )
    text_dim: int = Field(
        128, ge=16, le=16_384, multiple_of=8, description="Width of the vectors of texts and of low-resolution codes."
    )
    text_depth: int = Field(2, ge=1, le=64, description="Blocks of the byte encoder.")
    text_heads: int = Field(
        4, ge=1, description="Attention heads of the byte encoder and of the encoder of low-resolution codes."
    )
    text_length: int = Field(
        128, ge=8, le=4096, description="Longest text, in bytes or in a frozen encoder's tokens; longer ones are cut."
    )
    self_conditioning: bool = Field(False, description="Show the model its own prediction of the step before.")
    self_critic: bool = Field(False, description="A head that scores tokens, on the generator itself.")

    @field_validator("text")
    @classmethod
    def _known_text(cls, text: str) -> str:
        named = text.startswith(PRETRAINED) and text.removeprefix(PRETRAINED).strip()
        if text not in ("bytes", "classes", "none") and not named:
            raise ValueError("choose bytes, classes, none, or hf:PATH_OR_NAME")
        return text

    @field_validator("classes")
    @classmethod
    def _distinct_classes(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes is not None and not classes:
            raise ValueError("name at least one class")
        twice = [name for name, times in Counter(classes).items() if times > 1]
        if twice:
            raise ValueError(f"every class is named once, but {twice[0]!r} is there twice")
        return classes

    @field_validator("low_grid")
    @classmethod
    def _possible_grid(cls, grid: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if grid is not None and (len(grid) not in (2, 3) or min(grid) < 1):
            raise ValueError("rows and columns of codes are needed, and their levels if they have any")
        return grid

    @model_validator(mode="after")
    def _fits(self) -> MaskGitConfig:
        for dim, heads, name in ((self.dim, self.heads, "heads"), (self.text_dim, self.text_heads, "text_heads")):
            if dim % heads:
                raise ValueError(f"model.{name}={heads} does not divide a width of {dim}")
        if self.classes is not None and self.text != "classes":
            raise ValueError(f"model.classes are for model.text=classes, not for model.text={self.text}")
        if (self.low_grid is None) != (self.low_codes is None):
            raise ValueError("model.low_grid and model.low_codes are given both or not at all")
        if self.low_grid is not None and self.grid is not None and len(self.grid) not in (2, 3):
            raise ValueError(f"a super-resolution model has rows and columns of codes, not model.grid={self.grid}")
        return self
