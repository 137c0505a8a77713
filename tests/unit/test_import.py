"""What importing costs and does: no torch before it is needed, and no network at all."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import quintet

ROOT = Path(quintet.__file__).parent


def all_modules() -> list[str]:
    files = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name != "__main__.py")
    names = [".".join(("quintet", *file.with_suffix("").parts)) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def run(code: str, *arguments: str) -> str:
    """A fresh interpreter with all warnings as errors of ours to see."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""


def test_torch_waits_until_it_is_needed() -> None:
    quick = ["quintet", "quintet.cli", "quintet.config", "quintet.registry", "quintet.compat", "quintet.errors"]
    quick += [name for name in all_modules() if name.startswith("quintet.families.") and name.endswith(".config")]
    loaded = set(json.loads(run(LOADED, *quick)))
    assert len(quick) > 6
    assert set(quick) <= loaded
    assert not loaded & {"torch", "numpy", "PIL", "safetensors", "tensorboardX"}


def test_the_package_alone_loads_next_to_nothing() -> None:
    loaded = set(json.loads(run(LOADED, "quintet")))
    assert {name for name in loaded if name.startswith("quintet")} == {"quintet"}
    assert not loaded & {"torch", "pydantic", "yaml", "typer"}


WITHOUT_NETWORK = """
import importlib, sys

def refuse(event, arguments):
    if event in ("socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.bind"):
        raise RuntimeError(f"{event} {arguments}")

sys.addaudithook(refuse)
import socket
try:
    socket.socket()
except RuntimeError:
    print("guarded")
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(sys.argv) - 1)
"""


def test_no_module_touches_the_network_when_imported() -> None:
    names = all_modules()
    assert len(names) > 40
    assert run(WITHOUT_NETWORK, *names).split() == ["guarded", str(len(names))]


def test_public_names_are_there_and_no_others() -> None:
    from quintet.registry import RECIPES

    for entry in RECIPES.values():
        for name in (*entry.models, entry.trainer):
            assert getattr(quintet, name).__name__ == name
            assert name in dir(quintet)
    for name in ("NoSuchClass", "no_such_function", "_private"):
        with pytest.raises(AttributeError, match=name):
            getattr(quintet, name)


def test_type_checkers_are_told_every_model_and_trainer() -> None:
    from quintet.registry import RECIPES

    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {node.names[0].asname: node.module for node in block.body if isinstance(node, ast.ImportFrom)}
    public = {name: module for entry in reversed(RECIPES.values()) for name, module in entry.public_names().items()}
    assert found.pop("Objective") == "quintet.training.objective"
    assert found.items() <= public.items()
    assert {name for entry in RECIPES.values() for name in (*entry.models, entry.trainer)} <= found.keys()
