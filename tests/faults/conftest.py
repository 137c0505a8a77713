"""Fixtures of the fault tests. Faults are tried on every registered recipe, by its entry in tests/contract/cases.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from contract.cases import Case
from faults import ledger as ledgers
from helpers import LAST_STEP, UNENDING, made_once, succeed

Ledger = Callable[[str, int], None]
Words = tuple[object, ...]


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """`ledger(row, trials)` counts trials that passed, for the table in docs/reliability.md."""
    name = request.getfixturevalue("recipe") if "recipe" in request.fixturenames else None
    return lambda row, trials: ledgers.record(row, name, trials)


@pytest.fixture
def unending(recipe: str, case: Case, data: Path) -> Words:
    """The words of a training that is stopped from outside, without `--out`."""
    return ("train", recipe, data, *case.tiny, *UNENDING, *case.faults)


@pytest.fixture
def straight(recipe: str, unending: Words, shared: Path) -> Path:
    """What `unending` is without interruption, to step 40, every checkpoint kept. Read only."""
    to_the_end = partial(succeed, *unending, f"train.steps={LAST_STEP}", "--out")
    return made_once(shared, f"straight-{recipe}", to_the_end)
