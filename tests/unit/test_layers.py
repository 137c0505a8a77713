"""Imports point down only, and torch and its process groups stay where they belong. Read from the source, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import quintet

ROOT = Path(quintet.__file__).parent

LAYERS = (
    {"__main__"},
    {"cli"},
    {"web", "demos", "doctor", "compat"},
    {"runs", "codes", "embeddings", "evaluation", "semantic", "verify"},
    {"families task"},
    {"training"},
    {"families pipeline"},
    {"pipelines", "synthetic"},
    {"data"},
    {"families model"},
    {"sampling"},
    {"nn", "media"},
    {"common"},
    {"registry"},
    {"families config"},
    {"config"},
    {"errors"},
)
"""From the top. A module may import its own layer's package and what stands below it; `quintet` itself, for its
version, anyone may. The modules of a family are in four layers: see `family_part`."""

FAMILY_PARTS = {
    "config": "families config",
    "task": "families task",
    "trainer": "families task",
    "pipeline": "families pipeline",
    "data": "families pipeline",
    "mulan_conditioner": "families pipeline",
}
"""Of a family's modules; any other is a part of its model."""

MAY_IMPORT_DISTRIBUTED = {"training/engine.py", "common/collectives.py", "training/distributed/sharding.py"}


@dataclass(frozen=True)
class Import:
    """One name a module imports; `late` inside a function, `typing` for annotations alone."""

    name: str
    late: bool
    typing: bool


def modules() -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imports(module: str) -> list[Import]:
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    return list(_imports(tree, late=False, typing=False))


def _imports(node: ast.AST, late: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, late, typing) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"relative import of {child.module}"
            yield from (Import(f"{child.module}.{alias.name}", late, typing) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from _imports(child, late, typing=True)
        else:
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, inside, typing)


def part_of(name: str) -> str | None:
    """The part of the package that an imported name is in: `common` of `quintet.common.rng.ItemRNG`."""
    first, _, rest = name.partition(".")
    part = rest.split(".")[0]
    known = (ROOT / part).is_dir() or (ROOT / f"{part}.py").is_file()
    if first != "quintet" or not part or not known:
        return None
    return own_part("/".join(rest.split(".")) + ".py") if part == "families" else part


def own_part(module: str) -> str:
    """The part that a file is in; of a family's files that of its name."""
    first, *rest = module.removesuffix(".py").split("/")
    if first != "families" or len(rest) < 2:
        return first
    return FAMILY_PARTS.get(rest[1], "families model")


def layer_of(part: str) -> int:
    found = [number for number, layer in enumerate(LAYERS) if part in layer]
    assert found, f"'{part}' is in no layer; give it one in tests/unit/test_layers.py and docs/architecture.md"
    return found[0]


def test_there_is_something_to_check() -> None:
    assert len(modules()) > 40
    assert Import("quintet.training.engine.exit_process", late=True, typing=False) in imports("cli/__init__.py")
    assert Import("quintet.training.task.Task", late=False, typing=True) in imports("registry.py")


IMPORTING = [module for module in modules() if module not in ("__init__.py", "families/__init__.py")]


@pytest.mark.parametrize("module", IMPORTING)
def test_imports_point_down(module: str) -> None:
    own = own_part(module)
    for each in imports(module):
        part = part_of(each.name)
        if part is None or part == own or each.typing:
            continue
        same_layer = layer_of(part) == layer_of(own) and not own.startswith("families")
        assert same_layer or layer_of(part) > layer_of(own), f"{module} imports {each.name}, which is not below it"


def test_no_family_knows_another() -> None:
    for module in modules():
        if module.startswith("families/") and module.count("/") > 1:
            own = module.split("/")[1]
            for each in imports(module):
                assert not each.name.startswith("quintet.families.") or each.name.split(".")[2] == own, module


def test_nothing_imports_compat() -> None:
    for module in modules():
        assert module.startswith("compat/") or "compat" not in [part_of(each.name) for each in imports(module)], module


def test_the_modules_import_each_other_in_no_circle() -> None:
    """Imports of functions and for annotations do not run when a module is loaded."""
    needs: dict[str, set[str]] = {}
    for module in modules():
        if module == "__init__.py":
            continue
        found = {_file_of(each.name) for each in imports(module) if not each.late and not each.typing}
        needs[module] = {file for file in found if file is not None} - {module}
    while free := {module for module, wanted in needs.items() if not wanted}:
        needs = {module: wanted - free for module, wanted in needs.items() if module not in free}
    assert needs == {}


def _file_of(name: str) -> str | None:
    """The file an imported name comes from, if it is one of ours."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        path = "/".join(parts[1:length])
        if parts[0] == "quintet" and (ROOT / f"{path}.py").is_file():
            return f"{path}.py"
    return None


def test_three_files_alone_import_torchs_process_groups() -> None:
    for module in modules():
        for each in imports(module):
            distributed = each.name.startswith(("torch.distributed", "torch.nn.parallel"))
            assert not distributed or module in MAY_IMPORT_DISTRIBUTED, f"{module} imports {each.name}"
        text = (ROOT / module).read_text(encoding="utf-8")
        assert module in MAY_IMPORT_DISTRIBUTED or "torch.distributed." not in text, module


def test_what_help_needs_imports_no_torch_at_the_top() -> None:
    quick = ["registry.py", "errors.py", "__init__.py", "__main__.py"]
    quick += [module for module in modules() if module.startswith(("cli/", "config/", "compat/tables/"))]
    quick += [
        f"compat/{name}.py"
        for name in ("__init__", "__main__", "migration_page", "migration_text", "translation", "usages")
    ]
    quick += [module for module in modules() if module.startswith("families/") and module.endswith("/config.py")]
    assert len(quick) > 7
    for module in quick:
        for each in imports(module):
            heavy = each.name.split(".")[0] in ("torch", "numpy", "PIL", "safetensors")
            assert not heavy or each.late or each.typing, f"{module} imports {each.name} at the top"


def test_the_loop_names_no_family() -> None:
    families = [path.name for path in (ROOT / "families").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert families
    for module in modules():
        if module.startswith(("training/", "common/", "pipelines/")):
            text = (ROOT / module).read_text(encoding="utf-8").lower()
            assert not [family for family in families if f"families.{family}" in text], module
