"""pytest hooks of the fault matrix, for tests in any folder: selection of its tests, and counting of passed trials.

`@pytest.mark.fault("row")` makes a test a part of the matrix, and each time that it passes one trial of that row.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from faults import ledger as ledgers

Ledger = Callable[[str, int], None]


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """`ledger(row, trials)` counts trials that passed, for the table in docs/reliability.md."""
    return lambda row, trials: ledgers.record(row, _recipe(request.node), request.path, trials)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("fault")
    chosen = ledgers.RECIPE
    if chosen is not None:
        spared = [item for item in items if (_recipe(item) or ledgers.ANY) != chosen]
        config.hook.pytest_deselected(items=spared)
        items[:] = [item for item in items if (_recipe(item) or ledgers.ANY) == chosen]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.passed:
        for mark in item.iter_markers("fault"):
            for row in mark.args:
                ledgers.record(row, _recipe(item), item.path)
    return report


def _recipe(item: pytest.Item) -> str | None:
    """The recipe that a test is repeated for, if it is."""
    parameters = getattr(item, "callspec", None)
    return None if parameters is None else parameters.params.get("recipe")
