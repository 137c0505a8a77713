"""Judging what a generator makes in an evaluation: the judge of a batch's data set, and the mean of its scores.

Only items of a synthetic data set can be judged; of a person's own data there is no judge, and no such metric.
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
    """The judge of the data set that the items of a batch are of, if it can judge all of them on this split."""
    datasets = {*batch.fields.get("dataset", ())}
    judge = find_judge(datasets.pop()) if len(datasets) == 1 else None
    if judge is None or split not in judge.splits or not all(map(judge.knows, batch["metadata"])):
        return None
    return judge


def judged_rows(
    judge: Judge[Any], batch: Batch, split: str, generated: Iterable[Any], reconstructed: Iterable[Any]
) -> dict[str, Tensor]:
    """Scores of media generated from the captions of a batch and, as `…_reconstruction`, of the tokenizer's."""
    return {
        f"{name}{suffix}": values
        for suffix, media in (("", generated), ("_reconstruction", reconstructed))
        for name, values in judge.metrics(media, batch["metadata"], split).items()
    }


def mean_scores(rows: Mapping[str, Tensor]) -> dict[str, float]:
    """By metric of a judge the mean over all that captions promise; none where they promise nothing."""
    scores = {name: values for name, values in rows.items() if name.startswith("match_")}
    return {name: float(values.nanmean()) for name, values in scores.items() if not values.isnan().all()}
