"""docs/architecture.md is true: its figure is what the source says, and the functions of its walks are there."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import quintet

ROOT = Path(__file__).parents[2]
SOURCE = Path(quintet.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "docs" / "results" / "structure.md").read_text(encoding="utf-8")


def test_the_figure_of_the_layers_is_what_the_command_draws() -> None:
    drawing = _drawing()
    assert drawing.figure() == drawing.FIGURE.read_text(encoding="utf-8"), "the imports have changed: `make figures`"


def _drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_layers", ROOT / "docs" / "draw_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_hop_of_the_walks_is_a_function_of_its_file_and_longer_than_two_lines() -> None:
    rows = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| (`[^|]+`) \|", PAGE, re.MULTILINE)
    assert len(rows) > 100
    for file, named in rows:
        lengths = [_functions(file)[name] for name in re.findall(r"`([\w.]+)`", named)]
        assert max(lengths) > 2, f"{file}: {named}"


def test_the_hops_are_counted_without_a_gap() -> None:
    walks = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    totals = []
    for walk in walks:
        numbers = [number.split("-") for number in re.findall(r"^\| (\d+(?:-\d+)?) \|", walk, re.MULTILINE)]
        last = 0
        for number in numbers:
            assert int(number[0]) == last + 1
            last = int(number[-1])
        totals.append(last)
    recorded = re.findall(r"^\| hops of .* \| \d+ \| (\d+), ", RESULTS, re.MULTILINE)
    assert totals == [int(total) for total in recorded]


@cache
def _functions(file: str) -> dict[str, int]:
    """The functions and methods of a module, with how many lines each has below its docstring."""
    found: dict[str, int] = {}

    def look(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                look(child, f"{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                found[prefix + child.name] = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0

    look(ast.parse((SOURCE / file).read_text(encoding="utf-8")), "")
    return found
