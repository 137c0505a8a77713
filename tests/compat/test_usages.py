"""Every usage of the original packages works or is refused, as the table in docs/migration-tables.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.usage import Usage, all_usages, modules, usages_of
from quintet.compat.usages import modules_in, records_of


@pytest.mark.parametrize("usage", [pytest.param(usage, id=usage.id) for usage in all_usages()])
def test_usage_has_the_recorded_outcome(usage: Usage, tmp_path: Path) -> None:
    recorded = [row.refusal for row in records_of(usage.module) if (row.name, row.title) == (usage.name, usage.title)]
    assert usage.execute(tmp_path) == recorded[0], "run `make migration`"


def test_the_records_have_the_usages_of_the_source_in_order() -> None:
    assert modules_in() == modules(), "run `make migration`"
    for module in modules():
        recorded = [(row.name, row.title) for row in records_of(module)]
        assert recorded == [(usage.name, usage.title) for usage in usages_of(module)], "run `make migration`"
