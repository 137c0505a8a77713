"""Judging generated media during evaluation: the judge of a synthetic data set, and the mean of its scores.

Only synthetic data sets have a judge; other data sets have no such metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quintet.common.batch import Batch
from quintet.registry import find_judge

if TYPE_CHECKING:
    from quintet.synthetic.judges import Judge


def judge_of(batch: Batch, split: str) -> Judge[Any] | None:
    """The judge of the data set of a batch, or None if there is none or it does not cover all items on this split."""
    datasets = {*batch.fields.get("dataset", ())}
    judge = find_judge(datasets.pop()) if len(datasets) == 1 else None
    if judge is None or split not in judge.splits or not all(map(judge.knows, batch["metadata"])):
        return None
    return judge


def judged_rows(
    judge: Judge[Any], batch: Batch, split: str, generated: Iterable[Any], reconstructed: Iterable[Any]
) -> dict[str, Tensor]:
    """Scores (items,) of media generated from the captions of a batch, and `…_reconstruction` of reconstructions."""
    return {
        f"{name}{suffix}": values
        for suffix, media in (("", generated), ("_reconstruction", reconstructed))
        for name, values in judge.metrics(media, batch["metadata"], split).items()
    }


def mean_scores(rows: Mapping[str, Tensor]) -> dict[str, float]:
    """Mean of each score of a judge, ignoring NaN. A score that is NaN for all items is left out."""
    scores = {name: values for name, values in rows.items() if name.startswith("match_")}
    return {name: float(values.nanmean()) for name, values in scores.items() if not values.isnan().all()}
