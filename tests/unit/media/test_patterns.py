"""Regular expressions that meet users' bytes: none has a repetition inside of a repetition.

Such a pattern takes exponential time on some input.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import quintet
from quintet.config.tree import parse_value

SOURCE = Path(quintet.__file__).parent
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


def patterns() -> Iterator[tuple[str, str | bytes]]:
    """The literal patterns of the modules that read users' files."""
    for path in sorted([*SOURCE.glob("media/*.py"), *SOURCE.glob("data/**/*.py"), *SOURCE.glob("config/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Attribute(ast.Name("re")), [ast.Constant(str() | bytes() as pattern), *_]):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", pattern


def has_nested_repetition(parsed: Any, inside: bool = False) -> bool:
    for kind, value in parsed:
        repeats = kind in REPEATS and value[1] > 1
        if repeats and inside:
            return True
        for part in _parts(value):
            if has_nested_repetition(part, inside or repeats):
                return True
    return False


def _parts(value: Any) -> Iterator[Any]:
    """The patterns inside of a part of a pattern."""
    if isinstance(value, _parser.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _parts(each)


def test_no_pattern_has_nested_repetition() -> None:
    found = dict(patterns())
    assert len(found) >= 5
    assert [place for place, pattern in found.items() if has_nested_repetition(_parser.parse(pattern))] == []


@pytest.mark.parametrize("pattern", [rb"(#.*\s+)*OFF", "(a+)+", "(?:a|b*)*", "((a{2,})b)+"])
def test_nested_repetition_is_recognised(pattern: str | bytes) -> None:
    assert has_nested_repetition(_parser.parse(pattern))


def test_a_long_number_in_a_configuration_is_read_in_linear_time() -> None:
    assert parse_value("1e5", "train.steps") == 1e5
    assert parse_value("1.e-5", "train.steps") == 1e-5
    digits = "1" * 200_000 + "x"
    assert parse_value(digits, "train.steps") == digits
