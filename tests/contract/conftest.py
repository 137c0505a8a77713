"""Fixtures of the contract tests: each recipe's data and its finished run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.cases import Case, case_of
from helpers import made_once, succeed
from quintet.recipes import RECIPES

Train = Callable[..., Path]


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> str:
    """Every registered recipe in turn."""
    return str(request.param)


@pytest.fixture
def case(recipe: str) -> Case:
    return case_of(recipe)


@pytest.fixture
def data(case: Case, request: pytest.FixtureRequest) -> Path:
    """The folder the recipe is trained on. Read only."""
    return Path(request.getfixturevalue(case.data))


@pytest.fixture
def train(recipe: str, case: Case, data: Path) -> Train:
    """A tiny training of the recipe by the command, with more words."""

    def run(out: Path, *words: object) -> Path:
        succeed("train", recipe, data, "--out", out, *case.tiny, *words)
        return out

    return run


@pytest.fixture
def finished(recipe: str, train: Train, shared: Path) -> Path:
    """A finished run of twelve steps. Read only: copy it before changing it."""
    return made_once(shared, f"finished-{recipe}", train)
