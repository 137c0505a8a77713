"""Trees of configuration values: YAML, dotted keys, and printable forms of wrong values."""

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
"""Maximum size of a configuration file, in bytes; all keys with comments need about a hundredth of it."""
_DEEPEST_KEY = 20
LONGEST_VALUE = 200
"""Maximum number of characters of a wrong value or key that a message quotes."""


class _Loader(yaml.SafeLoader):
    """Reads 1e4 and 3e-4 as numbers, which are text in YAML 1.1.

    Aliases are refused, because a few lines of them can expand to more values than fit in memory. Integers of more
    than 64 bits are refused too.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported; write the value out")
        return super().compose_node(parent, index)

    def construct_integer(self, node: Any) -> int:
        text = str(self.construct_scalar(node))
        value = self.construct_yaml_int(node) if len(text) <= _LONGEST_INTEGER else 2**64
        if abs(value) >= 2**64:
            raise yaml.YAMLError(f"the integer {short(text)} is too large")
        return value


_LONGEST_INTEGER = 100
"""Characters: enough for 64 bits in base 2, and few enough to parse quickly."""
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""Exceptions of PyYAML for texts that are not YAML; tags that do not fit their values raise built-in exceptions."""


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `_Loader` would read as numbers."""

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if "\x85" in scalar:  # PyYAML writes it raw and reads it as a line break
            analysis.allow_single_quoted = analysis.allow_flow_plain = analysis.allow_block_plain = False
        return analysis


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)[eE][+-]?\d+$"), list("+-.0123456789")
    )


def to_yaml(value: Any, **options: Any) -> str:
    """YAML text that `parse_value` and `read_yaml` read back as the same value."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, **options))


def parse_overrides(arguments: Sequence[str]) -> Tree:
    """Parse `["train.steps=100", …]` to dotted keys and typed values, in YAML notation."""
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
        problem = "too large a number" if text.strip().lstrip("+-").isdigit() else "not valid YAML; put it in quotes"
        raise UsageError(f"{plain(key)}: {short(text)} is {problem}") from None


def read_yaml(path: Path) -> Tree:
    try:
        tree = yaml.load(_read_text(path), _Loader)
        if not isinstance(tree, dict):
            raise UsageError(f"{path} does not contain a mapping of keys to values")
        # Both nested sections and dotted keys are accepted.
        return expand(tree)
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except _UNREADABLE as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{path} is not YAML: {plain(first)}") from None


def _read_text(path: Path) -> str:
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would wait for ever
        raise UsageError(f"{path} is not a configuration: it is not a regular file")
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise UsageError(f"{path} is not a configuration: it is larger than {_LARGEST_FILE // 2**20} MB")
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
    """Merge `other` into `tree` in place, section by section."""
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


def data_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a data folder, so that a run can be resumed from any working directory; URLs are kept."""
    text = str(path) if "://" in str(path) else str(Path(path).resolve())
    if not text.isascii() and text.encode("utf-8", "replace").decode("utf-8") != text:
        raise UsageError(f"the path of the data is not UTF-8 and cannot be recorded: {short(text)}; rename the folder")
    return text


def short(value: Any) -> str:
    """A value in a form that is safe and short enough for a message."""
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts to text
        text = "a number too long to show"
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def plain(text: str) -> str:
    """The same for a text that is printed without quotes."""
    return short(text) if len(text) > LONGEST_VALUE or not text.isprintable() else text
