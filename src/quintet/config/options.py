"""Options of generation pipelines besides the prompts. Imports no torch, so that help is quick."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field

from quintet.config.section import Section


class GenerateOptions(Section):
    """Options of every generator."""

    num: int = Field(16, ge=1, le=10**6, description="Number of items per prompt.")
    seed: int = Field(0, ge=0, description="Random seed; the same seed gives the same items.")


class NegativePromptOptions(GenerateOptions):
    """Options of generators with classifier-free guidance on text."""

    negative_prompt: str | None = Field(
        None,
        description="Negative prompt: guidance steers away from this text; empty for none.",
        json_schema_extra={"flags": ["--negative", "--negative-prompt"]},
    )


@dataclass(frozen=True)
class Flag:
    """One option of the command line."""

    name: str
    flags: tuple[str, ...]
    kind: type
    help: str
    default: Any
    least: int | None

    @property
    def is_switch(self) -> bool:
        return self.kind is bool


def flags_of(options: type[GenerateOptions]) -> Iterator[Flag]:
    """The options of a pipeline, in the order of their fields."""
    for name, field in options.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        flags = tuple(map(str, extra.get("flags") or [f"--{name.replace('_', '-')}"]))  # type: ignore[arg-type]
        bounds = [getattr(each, "ge", None) for each in field.metadata]
        least = next((int(bound) for bound in bounds if bound is not None), None)
        yield Flag(name, flags, _kind_of(field.annotation), field.description or "", field.default, least)


def _kind_of(annotation: Any) -> type:
    """The type of the option's value, without None."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    (kind,) = kinds
    assert kind in (str, int, float, bool, Path), f"an option of type {kind} cannot be given on the command line"
    return kind  # type: ignore[no-any-return]


def is_set(options: BaseModel, name: str) -> bool:
    """Whether an option differs from its default."""
    return bool(getattr(options, name) != type(options).model_fields[name].default)
