"""Families in third-party packages: one that cannot be used is one error message, and all other recipes work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import error_line, install_entry_points, quintet, succeed
from quintet import registry

ENTRY = """
from quintet.registry import RecipeEntry
ENTRY = RecipeEntry(package="ownlab", config="OwnConfig", task="OwnTask", pipeline="OwnPipeline", summary="mine")
"""
CONFIG = """
from typing import Literal
from quintet.config import RunConfig
class OwnConfig(RunConfig):
    recipe: Literal["own"] = "own"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `ownlab` with the recipe `own`, which has only a configuration."""
    root = tmp_path / "packages"
    (root / "ownlab").mkdir(parents=True)
    (root / "ownlab" / "__init__.py").write_text(ENTRY)
    (root / "ownlab" / "config.py").write_text(CONFIG)
    monkeypatch.syspath_prepend(root)
    yield root
    for name in [name for name in sys.modules if name.split(".")[0] in ("ownlab", "otherlab")]:
        del sys.modules[name]


def assert_other_recipes_work(pictures: Path, out: Path) -> None:
    succeed("train", "vqgan", pictures, "--out", out, "--preset", "debug", "train.steps=1", "train.batch_size=2")
    succeed("sample", out, "--num", 2, "--out", out / "shown")
    assert "vqgan" in succeed("sample", "--help").output
    listed = succeed("recipes").output
    assert all(name in listed for name in registry.RECIPES)


def test_a_package_that_fails_to_import_is_one_sentence(own: Path, pictures: Path, tmp_path: Path) -> None:
    (own / "ownlab" / "__init__.py").write_text("import a_module_that_nobody_has\n")
    install_entry_points(own, "ownlab", {"own": "ownlab:ENTRY"})
    message = (
        "recipe 'own' of ownlab cannot be imported (ModuleNotFoundError: No module named 'a_module_that_nobody_has')"
    )
    assert message in error_line(quintet("train", "own", pictures, "--out", tmp_path / "run").errors)
    assert message in succeed("recipes").errors
    assert_other_recipes_work(pictures, tmp_path / "other")


def test_a_value_that_is_not_an_entry_is_one_sentence(own: Path, pictures: Path, tmp_path: Path) -> None:
    install_entry_points(own, "ownlab", {"own": "ownlab.config:OwnConfig", "none": "ownlab:NOTHING"})
    message = error_line(quintet("config", "own").errors)
    assert "recipe 'own': ownlab.config:OwnConfig is a ModelMetaclass, not a RecipeEntry" in message
    assert "recipe 'none' of ownlab cannot be imported (AttributeError" in error_line(quintet("config", "none").errors)
    assert_other_recipes_work(pictures, tmp_path / "other")


def test_a_name_that_quintet_has_is_not_replaced(own: Path, pictures: Path, tmp_path: Path) -> None:
    install_entry_points(own, "ownlab", {"vqgan": "ownlab:ENTRY"})
    assert registry.find("vqgan").package == "quintet.families.vqgan"
    assert "recipe 'vqgan' of ownlab is ignored: quintet has a recipe of that name" in succeed("recipes").errors
    assert_other_recipes_work(pictures, tmp_path / "other")


def test_a_name_that_two_packages_offer_is_refused(own: Path, pictures: Path, tmp_path: Path) -> None:
    install_entry_points(own, "ownlab", {"own": "ownlab:ENTRY"})
    install_entry_points(own, "otherlab", {"own": "otherlab:ENTRY"})
    message = "recipe 'own' is provided by otherlab and ownlab; uninstall one of them"
    assert message in error_line(quintet("train", "own", pictures, "--out", tmp_path / "run").errors)
    assert message in succeed("recipes").errors
    assert_other_recipes_work(pictures, tmp_path / "other")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("import a_module_that_nobody_has\n", "ownlab.config cannot be imported: ModuleNotFoundError"),
        ("value = 1\n", "ownlab.config has no OwnConfig"),
        (CONFIG.replace('"own"', '"other"'), "recipe 'own' has a configuration class for recipe 'other'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named_by_recipes(
    own: Path, config: str, message: str, pictures: Path, tmp_path: Path
) -> None:
    install_entry_points(own, "ownlab", {"own": "ownlab:ENTRY"})
    (own / "ownlab" / "config.py").write_text(config)
    assert message in succeed("recipes").errors
    assert_other_recipes_work(pictures, tmp_path / "other")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (None, "ownlab.task cannot be imported: ModuleNotFoundError"),
        ("value = 1\n", "ownlab.task has no OwnTask, which its RecipeEntry refers to"),
        ("raise ZeroDivisionError('mine')\n", "ownlab.task cannot be imported: ZeroDivisionError: mine"),
        ("class OwnTask:\n    pass\n", "ownlab.task: OwnTask is not a subclass of Task"),
    ],
)
def test_a_member_that_is_missing_is_one_sentence(
    own: Path, task: str | None, message: str, pictures: Path, tmp_path: Path
) -> None:
    install_entry_points(own, "ownlab", {"own": "ownlab:ENTRY"})
    if task is not None:
        (own / "ownlab" / "task.py").write_text(task)
    assert message in error_line(quintet("train", "own", pictures, "--out", tmp_path / "run").errors)
    assert not (tmp_path / "run").exists()
    assert_other_recipes_work(pictures, tmp_path / "other")
