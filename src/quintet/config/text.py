"""Configuration keys of text conditioning. Imports no torch, so that help is quick."""

from __future__ import annotations

from collections import Counter

from pydantic import Field, field_validator, model_validator

from quintet.config import Section

HUB = "hub:"
"""Prefix of a reference to a model on the Hugging Face hub."""
STARTER = "starter:"
"""Prefix of a reference to a model that is part of quintet."""
NAMED = (HUB, STARTER)
"""Prefixes of models that are named instead of being a path."""
PRETRAINED = "hf:"
"""Prefix of the folder or name of a pretrained model of `transformers`."""


def known_text(text: str) -> str:
    """`text`, the name of a text encoder; `ValueError` if there is none of this name."""
    named = text.startswith(PRETRAINED) and text.removeprefix(PRETRAINED).strip()
    if text not in ("bytes", "words", "classes", "vectors", "none") and not named:
        raise ValueError("choose bytes, words, classes, vectors, none, or hf:PATH_OR_NAME")
    return text


class TextConfig(Section):
    """Text conditioning of a generator."""

    text: str = Field(
        "bytes",
        description="Text encoder: bytes or words (trained with the model; words learn faster, bytes fit any text), "
        "classes (an embedding per class), hf:PATH_OR_NAME (a frozen encoder of transformers), vectors (embeddings "
        "from a Python dataset) or none (no text conditioning).",
    )
    classes: tuple[str, ...] | None = Field(
        None, description="Class names for model.text=classes; null uses the distinct captions of the data."
    )
    vector_dim: int | None = Field(
        None, ge=1, description="Dimension of the text embeddings for model.text=vectors; null for any other encoder."
    )
    text_dim: int = Field(128, ge=16, le=16_384, multiple_of=8, description="Dimension of the conditioning vectors.")
    text_depth: int = Field(2, ge=1, le=64, description="Number of blocks of the text encoder (bytes, words).")
    text_heads: int = Field(
        4, ge=1, description="Number of attention heads of the text encoder; must divide `model.text_dim`."
    )
    text_length: int = Field(
        128,
        ge=8,
        le=4096,
        description="Maximum text length, in bytes, words or tokens of a frozen encoder; longer texts are truncated.",
    )

    @field_validator("text")
    @classmethod
    def _known_text(cls, text: str) -> str:
        return known_text(text)

    @field_validator("classes")
    @classmethod
    def _distinct_classes(cls, classes: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if classes is not None and not classes:
            raise ValueError("name at least one class")
        twice = [name for name, times in Counter(classes).items() if times > 1]
        if twice:
            raise ValueError(f"class names must be unique, but {twice[0]!r} is listed twice")
        return classes

    @model_validator(mode="after")
    def _check_text(self) -> TextConfig:
        if self.text_dim % self.text_heads:
            raise ValueError(f"model.text_heads={self.text_heads} does not divide model.text_dim={self.text_dim}")
        if self.classes is not None and self.text != "classes":
            raise ValueError(f"model.classes needs model.text=classes, not model.text={self.text}")
        if (self.vector_dim is None) == (self.text == "vectors"):
            raise ValueError("model.text=vectors and model.vector_dim must be set together")
        return self
