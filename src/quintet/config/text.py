"""Owns the keys by which a model is told what to make in words. Free of torch, so that help is quick."""

from __future__ import annotations

from collections import Counter

from pydantic import Field, field_validator, model_validator

from quintet.config import Section

PRETRAINED = "hf:"
"""Before the folder or name of a frozen text encoder."""


class TextConfig(Section):
    """What reads the texts of a generator, and how long they may be."""

    text: str = Field(
        "bytes",
        description="What reads the text: bytes or words, an encoder of these, trained with the model (words are "
        "understood sooner, bytes are the same in every script); classes, a vector for each class; hf:PATH_OR_NAME, a "
        "frozen encoder of transformers; vectors, text embeddings that a data set in Python brings along; none, no "
        "text.",
    )
    classes: tuple[str, ...] | None = Field(
        None, description="Names of the classes for text=classes; none: the captions found in the data."
    )
    vector_dim: int | None = Field(None, ge=1, description="Width of those text embeddings, for text=vectors.")
    text_dim: int = Field(
        128, ge=16, le=16_384, multiple_of=8, description="Width of the vectors that the model is told things by."
    )
    text_depth: int = Field(2, ge=1, le=64, description="Blocks of the encoder of bytes or words.")
    text_heads: int = Field(4, ge=1, description="Attention heads of what makes those vectors.")
    text_length: int = Field(
        128,
        ge=8,
        le=4096,
        description="Longest text, in bytes, words or a frozen encoder's tokens; longer ones are cut.",
    )

    @field_validator("text")
    @classmethod
    def _known_text(cls, text: str) -> str:
        named = text.startswith(PRETRAINED) and text.removeprefix(PRETRAINED).strip()
        if text not in ("bytes", "words", "classes", "vectors", "none") and not named:
            raise ValueError("choose bytes, words, classes, vectors, none, or hf:PATH_OR_NAME")
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

    @model_validator(mode="after")
    def _texts_fit(self) -> TextConfig:
        if self.text_dim % self.text_heads:
            raise ValueError(f"model.text_heads={self.text_heads} does not divide a width of {self.text_dim}")
        if self.classes is not None and self.text != "classes":
            raise ValueError(f"model.classes are for model.text=classes, not for model.text={self.text}")
        if (self.vector_dim is None) == (self.text == "vectors"):
            raise ValueError("model.text=vectors and model.vector_dim belong together")
        return self
