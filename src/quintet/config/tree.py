"""Trees of configuration values: YAML, dotted keys, and texts of wrong values that are safe to print."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from quintet.errors import UsageError

Tree = dict[str, Any]

_LARGEST_FILE = 2**20
"""Bytes of a configuration; all keys with comments take a hundredth of it."""
_DEEPEST_KEY = 20
LONGEST_VALUE = 200
"""Characters of a wrong value or key that a message repeats."""


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e4 and 3e-4 for text; everyone who writes them means numbers.

    No aliases: a few lines of them stand for more values than any memory holds. No integers of more than 64 bits.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_integer(self, node: Any) -> int:
        text = str(self.construct_scalar(node))
        value = self.construct_yaml_int(node) if len(text) <= _LONGEST_INTEGER else 2**64
        if abs(value) >= 2**64:
            raise yaml.YAMLError(f"{short(text)} is too large a number")
        return value


_LONGEST_INTEGER = 100
"""Characters: enough for 64 bits in base 2, and too few to keep the reader busy."""
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""What PyYAML raises for texts that are not YAML; tags on values they do not fit let its own errors through."""


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would take for numbers."""

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if "\x85" in scalar:  # PyYAML writes it raw and reads it as a line break
            analysis.allow_single_quoted = analysis.allow_flow_plain = analysis.allow_block_plain = False
        return analysis


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+$"), list("+-.0123456789")
    )


def to_yaml(value: Any, **options: Any) -> str:
    """YAML text that `parse_value` and `read_yaml` read back as the same value."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, **options))


def parse_overrides(arguments: Sequence[str]) -> Tree:
    """`["train.steps=100", …]` to dotted keys and typed values, in the notation of YAML."""
    result: Tree = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{short(argument)} is not of the form key=value (for example train.steps=1000)")
        result[key.strip()] = parse_value(text, key.strip())
    return result


def parse_value(text: str, key: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except _UNREADABLE:
        raise UsageError(f"{plain(key)}: {short(text)} is not a value YAML can read; put it in quotes") from None


def read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.load(_read_text(path), _Loader)
        if not isinstance(tree, dict):
            raise UsageError(f"{path} does not hold a mapping of keys to values")
        # Both nested sections and dotted keys are welcome.
        return expand(tree)
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except _UNREADABLE as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} is not YAML: {plain(first)}") from None


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise UsageError(f"{path} is no configuration: it is larger than {_LARGEST_FILE // 2**20} MB")
    return content.decode("utf-8")


def expand(flat: Mapping[Any, Any]) -> Tree:
    """Dotted keys to nested sections; nested sections pass through."""
    tree: Tree = {}
    for key, value in flat.items():
        nested = expand(value) if isinstance(value, Mapping) else value
        parts = str(key).split(".")
        if len(parts) > _DEEPEST_KEY:
            raise UsageError(f"unknown key {short(str(key))} (`quintet config RECIPE` lists all keys)")
        for part in reversed(parts):
            nested = {part: nested}
        merge_into(tree, nested)
    return tree


def merge_into(tree: Tree, other: Mapping[str, Any]) -> None:
    """Lay `other` over `tree` in place, section by section."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            merge_into(tree[key], value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Nested sections to dotted keys."""
    flat: Tree = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def data_path(place: str | os.PathLike[str]) -> str:
    """A folder of data as a run keeps it, wherever it is resumed from; an address stays as it is."""
    return str(place) if "://" in str(place) else str(Path(place).resolve())


def short(value: Any) -> str:
    """A value as it may stand in a sentence, whoever wrote it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        text = "a number too long to show"
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def plain(text: str) -> str:
    """The same for a text that stands without quotes."""
    return short(text) if len(text) > LONGEST_VALUE or not text.isprintable() else text
