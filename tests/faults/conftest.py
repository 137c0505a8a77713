"""Fixtures of the fault tests. Faults are tried on every registered recipe, by its entry in tests/contract/cases.py.

`make faults` tries all of them on all recipes. Otherwise each test takes `RECIPES_A_TEST` of them, by turns: what
breaks under faults is mostly the core, and the tests stay quick however many recipes there are.
"""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path

import pytest

from contract.cases import Case
from faults import ledger as ledgers
from faults.plugin import Ledger
from helpers import LAST_STEP, UNENDING, made_once, succeed
from quintet.registry import RECIPES

__all__ = ["Ledger", "Words"]

RECIPES_A_TEST = 2
FOR_ALL = ("test_golden.py",)
"""Golden data of every recipe must be read in every run."""
FOR_SOME = (
    *("test_weights_of_codes", "test_codes_that_are_not_of_the_model", "test_items_of_codes", "test_codes"),
    *("test_images_are_trained_on", "test_a_folder_of_traps_is_trained_on"),
)
"""Tests that apply only to tokenizers or image recipes; other recipes skip them."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spared = [] if ledgers.WHOLE else [item for item in items if not its_turn(item)]
    if spared:
        config.hook.pytest_deselected(items=spared)
        gone = set(spared)
        items[:] = [item for item in items if item not in gone]


def its_turn(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    if parameters is None or "recipe" not in parameters.params:
        return True
    name: str = item.originalname  # type: ignore[attr-defined]
    if Path(__file__).parent not in item.path.parents or item.path.name in FOR_ALL or name in FOR_SOME:
        return True
    first = zlib.crc32(f"{item.path.name} {name}".encode())
    place = list(RECIPES).index(parameters.params["recipe"])
    return (place - first) % len(RECIPES) < RECIPES_A_TEST


Words = tuple[object, ...]


@pytest.fixture
def unending(recipe: str, case: Case, data: Path) -> Words:
    """The words of a training that is stopped from outside, without `--out`."""
    return ("train", recipe, data, *case.tiny, *UNENDING, *case.faults)


@pytest.fixture
def straight(recipe: str, unending: Words, shared: Path) -> Path:
    """What `unending` is without interruption, to step 40, every checkpoint kept. Read only."""
    to_the_end = partial(succeed, *unending, f"train.steps={LAST_STEP}", "--out")
    return made_once(shared, f"straight-{recipe}", to_the_end)
