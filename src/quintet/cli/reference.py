"""Generates the reference pages of the recipes, `docs/reference/*.md`, from their configuration classes.

    python -m quintet.cli.reference [FOLDER]          # default docs/reference; or `make reference`

A page lists every key of a recipe with its default, allowed values and description, the presets, and the options of
`quintet sample`. The pages contain nothing but what the configuration classes and the registry say, so edit those.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quintet import registry
from quintet.cli.shared import print_line
from quintet.common import files
from quintet.config import GenerateOptions, RunConfig, build, flatten
from quintet.config.options import flags_of
from quintet.config.tree import to_yaml
from quintet.registry import RecipeEntry

FOLDER = Path("docs/reference")
INDEX = "README.md"

PAPERS: Mapping[str, tuple[str, str]] = {
    "vqgan": ("Taming Transformers for High-Resolution Image Synthesis (Esser et al. 2021)", "2012.09841"),
    "muse": ("Muse: Text-To-Image Generation via Masked Generative Transformers (Chang et al. 2023)", "2301.00704"),
    "mulan": ("MuLan: A Joint Embedding of Music Audio and Natural Language (Huang et al. 2022)", "2208.12415"),
    "cvivit": ("Phenaki: Variable Length Video Generation (Villegas et al. 2022)", "2210.02399"),
    "phenaki": ("Phenaki: Variable Length Video Generation (Villegas et al. 2022)", "2210.02399"),
    "audio-codec": ("SoundStream: An End-to-End Neural Audio Codec (Zeghidour et al. 2021)", "2107.03312"),
    "soundstorm": ("SoundStorm: Efficient Parallel Audio Generation (Borsos et al. 2023)", "2305.09636"),
    "mesh-autoencoder": ("MeshGPT: Generating Triangle Meshes (Siddiqui et al. 2023)", "2311.15475"),
    "mesh-transformer": ("MeshGPT: Generating Triangle Meshes (Siddiqui et al. 2023)", "2311.15475"),
}
"""Title and arXiv id of the main paper of each recipe; the README of a family lists all of them."""

SECTIONS = ("data", "model", "loss", "train", "optim", "ema", "eval", "sample", "checkpoint", "log", "engine")
"""The order of sections on a page; any others follow."""

_TYPES = {int: "integer", float: "number", bool: "`true`, `false`", str: "text", Path: "path"}
_LARGEST_BOUND = 2**31
"""Larger bounds are technical limits, and not shown."""
_BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "multiple_of": "multiple of {}"}


def pages() -> dict[str, str]:
    """The pages of quintet's own recipes and their index, by file name."""
    own = {name: page(name, entry) for name, entry in registry.RECIPES.items()}
    return {INDEX: index(registry.RECIPES), **{f"{name}.md": text for name, text in own.items()}}


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all pages to a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        files.replace_text(folder / name, text)
    return [folder / name for name in pages()]


def index(entries: Mapping[str, RecipeEntry]) -> str:
    """The page that lists all recipes."""
    lines = [
        "# Configuration reference",
        "",
        "Every key of every recipe, with its default and description.",
        "`quintet config RECIPE` prints the same keys as commented YAML.",
        "On the command line, `key=value` sets a key.",
        "These pages are generated; `make reference` writes them again.",
        "",
        *_table(("Recipe", "Trains"), [(f"[{name}]({name}.md)", entry.summary) for name, entry in entries.items()]),
    ]
    return "\n".join(lines) + "\n"


def page(name: str, entry: RecipeEntry) -> str:
    """The page of one recipe."""
    schema = entry.config_class()
    lines = [f"# `{name}`", "", *_introduction(name, entry, schema), ""]
    top = {key: field for key, field in schema.model_fields.items() if not _is_section(field)}
    config = build(schema)
    lines += ["## Top level", "", *_keys(config, top, ""), ""]
    sections = [key for key in schema.model_fields if key not in top]
    for key in sorted(sections, key=lambda key: SECTIONS.index(key) if key in SECTIONS else len(SECTIONS)):
        lines += _section(getattr(config, key), schema.model_fields[key], key)
    lines += _presets(schema)
    if schema.OPTIONS is not None:
        lines += _options(schema.OPTIONS)
    return "\n".join(lines).rstrip() + "\n"


def _introduction(name: str, entry: RecipeEntry, schema: type[RunConfig]) -> Iterator[str]:
    family = entry.package.rsplit(".", 1)[-1]
    yield f"Configuration keys of the recipe `{name}`\n({entry.summary})."
    yield f"It needs {entry.needs}."
    if name in PAPERS:
        title, number = PAPERS[name]
        yield from (f"Paper: {title},", f"[arXiv:{number}](https://arxiv.org/abs/{number}).")
    yield f"Background and examples are in the [README of the family](../../src/quintet/families/{family}/README.md)."
    frozen = "".join(f" --{key} RUN" if key == "tokenizer" else f" [--{key} RUN]" for key in schema.FROZEN_KEYS)
    frozen += f" [--condition {'|'.join(schema.CONDITIONS)}]" if schema.CONDITIONS else ""
    yield from (
        "",
        "```sh",
        f"quintet train {name} DATA{frozen} [--preset {'|'.join(schema.PRESETS)}] [KEY=VALUE …]",
        "```",
    )


def _section(section: BaseModel, field: FieldInfo, path: str) -> Iterator[str]:
    """A heading and the keys of a section, then its subsections."""
    nested = {key: each for key, each in type(section).model_fields.items() if _is_section(each)}
    keys = {key: each for key, each in type(section).model_fields.items() if key not in nested}
    yield from (f"## `{path}`", "", field.description or "", "", *_keys(section, keys, f"{path}."), "")
    for key, each in nested.items():
        yield from _section(getattr(section, key), each, f"{path}.{key}")


def _keys(section: BaseModel, fields: Mapping[str, FieldInfo], prefix: str) -> list[str]:
    values = section.model_dump(mode="json")
    rows = [
        (f"`{prefix}{key}`", f"`{_yaml(values[key])}`", _values(field), field.description or "")
        for key, field in fields.items()
    ]
    return _table(("Key", "Default", "Values", "Description"), rows)


def _presets(schema: type[RunConfig]) -> Iterator[str]:
    """The keys that presets change."""
    if not schema.PRESETS:
        return
    built = {name: flatten(build(schema, preset=name).model_dump(mode="json")) for name in schema.PRESETS}
    default = flatten(build(schema).model_dump(mode="json"))
    changed = [key for key in default if any(values[key] != default[key] for values in built.values())]
    rows = [
        (f"`{key}`", *(f"`{_yaml(values[key])}`" for values in (default, *built.values())))
        for key in changed
        if key != "preset"
    ]
    yield from ("## Presets", "", "Keys that differ between the presets (`--preset NAME`) and the defaults.", "")
    yield from (*_table(("Key", "default", *(f"`{name}`" for name in built)), rows), "")


def _options(options: type[GenerateOptions]) -> Iterator[str]:
    yield from ("## Options of `quintet sample`", "", "Besides prompts (`--text`) and `sample.*` keys.", "")
    rows = [
        (", ".join(f"`{name}`" for name in flag.flags), f"`{_yaml(flag.default)}`", flag.help)
        for flag in flags_of(options)
    ]
    yield from (*_table(("Option", "Default", "Description"), rows), "")


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _values(field: FieldInfo) -> str:
    """The allowed values of a key: choices, or the type with its bounds."""
    found = [(text, getattr(each, name, None)) for each in field.metadata for name, text in _BOUNDS.items()]
    bounds = [text.format(bound) for text, bound in found if bound is not None and bound < _LARGEST_BOUND]
    types = [kind for kind in _members(field.annotation) if kind is not NoneType]
    values = ", ".join([" or ".join(dict.fromkeys(map(_type, types))), *bounds])
    return f"{values}; or `null`" if NoneType in _members(field.annotation) else values


def _members(annotation: Any) -> Sequence[Any]:
    """The members of a union, or the annotation itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        plural = "" if get_origin(arguments[0]) is Literal else "s"
        return f"list of {count}{_type(arguments[0])}{plural}"
    return _TYPES.get(annotation, "mapping")


def _yaml(value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    return to_yaml(value, default_flow_style=True, width=math.inf).removesuffix("...\n").rstrip("\n")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *escaped)]


if __name__ == "__main__":
    for path in write(*map(Path, sys.argv[1:2])):
        print_line(str(path))
