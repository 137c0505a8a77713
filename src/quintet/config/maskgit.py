"""Owns the keys of `MaskGit`. Free of torch, so that help is quick."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from quintet.config.text import TextConfig


class MaskGitConfig(TextConfig):
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
    merge: tuple[int, ...] | None = Field(
        None,
        description="Neighbouring codes along each axis of the grid that are one token to the transformer, such as "
        "[1,2,2] of video: a fraction of the work; none: each code is one.",
    )
    rotary: bool = Field(False, description="Let attention see distances too, by turning queries and keys.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch of a block.")
    self_conditioning: bool = Field(False, description="Show the model its own prediction of the step before.")
    self_critic: bool = Field(False, description="A head that scores tokens, on the generator itself.")

    @field_validator("low_grid")
    @classmethod
    def _possible_grid(cls, grid: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if grid is not None and (len(grid) not in (2, 3) or min(grid) < 1):
            raise ValueError("rows and columns of codes are needed, and their levels if they have any")
        return grid

    @model_validator(mode="after")
    def _fits(self) -> MaskGitConfig:
        if self.dim % self.heads:
            raise ValueError(f"model.heads={self.heads} does not divide a width of {self.dim}")
        if (self.low_grid is None) != (self.low_codes is None):
            raise ValueError("model.low_grid and model.low_codes are given both or not at all")
        if self.merge is not None and self.grid is not None:
            fits = len(self.merge) == len(self.grid) and min(self.merge) > 0
            if not fits or any(size % step for size, step in zip(self.grid, self.merge, strict=True)):
                raise ValueError(
                    f"model.merge={list(self.merge)} does not divide a grid of {list(self.grid)} codes; null for none"
                )
        if self.low_grid is not None and self.grid is not None and len(self.grid) not in (2, 3):
            raise ValueError(f"a super-resolution model has rows and columns of codes, not model.grid={self.grid}")
        return self
