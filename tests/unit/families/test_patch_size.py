"""`model.code_patch_size=auto`: the size of patches of codes for a grid."""

from __future__ import annotations

import pytest

from quintet.errors import UsageError
from quintet.nn.maskgit import MaskGit
from quintet.pipelines.maskgit import auto_patch_size


@pytest.mark.parametrize(
    ("grid", "num_time_axes", "expected"),
    [
        ((8, 8), 0, (2, 2)),
        ((16, 8), 0, (2, 2)),
        ((8, 9), 0, (2, 1)),
        ((4, 4), 0, None),
        ((7, 9), 0, None),
        ((8, 8, 3), 0, (2, 2, 3)),
        ((5, 8, 8, 2), 1, (1, 2, 2, 2)),
        ((4, 4, 2), 0, None),
        ((5, 8, 8), 1, (1, 2, 2)),
        ((8, 4, 4), 1, None),
    ],
)
def test_auto_groups_rows_and_columns_in_twos_where_they_divide_the_grid(
    grid: tuple[int, ...], num_time_axes: int, expected: tuple[int, ...] | None
) -> None:
    assert auto_patch_size(grid, num_time_axes) == expected


def test_a_model_that_is_built_without_a_run_needs_numbers() -> None:
    with pytest.raises(UsageError, match=r"model\.code_patch_size=auto"):
        MaskGit(grid=(8, 8), num_codes=16, dim=16, depth=1, heads=2, text="none", code_patch_size="auto")
